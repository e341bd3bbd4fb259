"""Parts of the plugin without an engine: page layout, paged definition, convolution, configs, options, refusals."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import conv1d, logsigmoid, normalize, silu
from vllm_engines import CASES, GOLDEN, case_with, needs_vllm

from longeval.errors import UserError
from longeval.kernels import reference
from longeval.kernels.pages import Householder
from longeval.kernels.pool import PageLayout, Shape
from longeval.kernels.reference import ScoreRule
from longeval.models.vllm import definition, engine, register
from longeval.models.vllm.options import default_options, parse_options, window_overrides
from longeval.models.vllm.pages import Block
from longeval.models.vllm.shortconv import TokenPlaces, short_convolution, unit_length

# Where there is no GPU the kernel runs in Triton's interpreter: it has to be chosen before Triton is first imported.
with pytest.MonkeyPatch.context() as patch:
    if not torch.cuda.is_available():
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("triton.experimental.gluon")  # the interpreter imports it late, and checks the setting
    kernel = importlib.import_module("longeval.models.vllm.shortconv_kernel")

PAGE = 128
TABLE = torch.tensor(
    [[5, 2, 7, 1], [3, 6, 0, 0], [4, 8, 0, 0]]
)  # blocks in no order; what is not in use points anywhere


@pytest.mark.parametrize(("head_dim", "limit"), [(64, 1.25), (128, 1.35)])
def test_bytes_per_token(head_dim, limit):
    """PaTH-FoX with convolution against keys and values in bfloat16, at the default page size."""
    shape = Shape(24, 24, head_dim, torch.bfloat16, path=True, gate=True)
    block = Block(PageLayout(shape, 512), conv=True)
    assert block.bytes_per_token <= limit * 2 * head_dim * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page", [64, 512])
def test_views_do_not_overlap(page, dtype):
    block = Block(PageLayout(Shape(4, 2, 32, dtype, path=True, gate=True), page), conv=True)
    cache = torch.zeros(3, 2, page, block.bytes_per_token, dtype=torch.uint8)
    pool, tail = block.views(cache)
    fields = {name: getattr(pool, name) for name in ("k", "v", "g", "f", "w", "beta")} | {"tail": tail}
    for number, field in enumerate(fields.values(), start=1):
        field.fill_(number)
    for number, (name, field) in enumerate(fields.items(), start=1):
        assert (field == number).all(), name


def packed(kind, tokens, seed):
    g = torch.Generator().manual_seed(seed)
    q, k, v, w = (torch.randn(tokens, heads, 16, generator=g, dtype=torch.float64) for heads in (4, 2, 2, 2))
    path = Householder(normalize(w, dim=-1), 2 * torch.rand(tokens, 2, generator=g, dtype=torch.float64))
    log_f = logsigmoid(torch.randn(tokens, 4, generator=g, dtype=torch.float64) + 2)
    return {"q": q, "k": k, "v": v, "path": path if "path" in kind else None, "log_f": log_f if "fox" in kind else None}


def each(x, take):
    def one(value):
        if value is None:
            return None
        return Householder(take(value.w), take(value.beta)) if isinstance(value, Householder) else take(value)

    return {name: one(value) for name, value in x.items()}


@pytest.mark.parametrize("kind", ["path", "path_fox", "fox"])
def test_paged_definition(kind):
    """Three sequences, each step a mixture of chunks and single tokens, in a pool full of NaN: the plain definition."""
    rule = ScoreRule(0.25, gate_scale=0.25)
    layout = PageLayout(Shape(4, 2, 16, torch.float32, path="path" in kind, gate="fox" in kind), PAGE)
    pool = layout.carve(torch.full((9, 2, layout.nbytes), 255, dtype=torch.uint8))  # NaN in every dtype
    texts = [packed(kind, length, seed) for seed, length in enumerate((300, 200, 140))]
    steps = [(1, 130, 64), (70, 1, 1), (57, 1, 0), (1, 60, 63), (128, 7, 1), (43, 1, 11)]
    held, outs = [0, 0, 0], [[], [], []]
    for new in steps:
        live = [n for n in range(3) if new[n]]
        pieces = [each(texts[n], lambda x, n=n, new=new: x[held[n] : held[n] + new[n]].float()) for n in live]
        joined = each(pieces[0], lambda x: x)
        for name in joined:
            values = [piece[name] for piece in pieces]
            if isinstance(values[0], Householder):
                joined[name] = Householder(*(torch.cat(parts) for parts in zip(*values, strict=True)))
            elif values[0] is not None:
                joined[name] = torch.cat(values)
        starts = torch.tensor([0, *(new[n] for n in live)]).cumsum(0).tolist()
        out = torch.empty_like(joined["q"])
        definition.attend(pool, rule, TABLE[live], starts, [held[n] for n in live], **joined, out=out)
        for place, n in enumerate(live):
            outs[n].append(out[starts[place] : starts[place + 1]])
            held[n] += new[n]
    assert held == [300, 200, 140]
    for n, text in enumerate(texts):
        exact = reference.sequential(rule, **each(text, lambda x: x[None]))[0]
        torch.testing.assert_close(torch.cat(outs[n]).double(), exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("conv", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_of_w(dtype, conv):
    """The definition's w and tails, over several calls, from a view that is not contiguous; padding between."""
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight = torch.randn(32, 1, 3, device=device).to(dtype) if conv else None
    tails = [torch.full((9, 2, 2, 16), torch.nan, dtype=dtype, device=device) for _ in range(2)]
    held = torch.zeros(2, dtype=torch.int32, device=device)
    for new in ((1, 64), (1, 1), (62, 1), (64, 2), (2, 63), (70, 0)):
        starts = torch.tensor([0, *new], device=device).cumsum(0).int()
        places = TokenPlaces.of(starts, held, TABLE[:2].int().to(device), torch.zeros(sum(new), device=device), 64)
        x = torch.randn(sum(new), 3, 48, device=device).to(dtype)[:, 1:, 16:32]
        y = short_convolution(x, weight, tails[0], places) if conv else x
        out = kernel.unit_w(x, weight, tails[1] if conv else None, places)
        assert out.dtype == (torch.float32 if dtype == torch.float32 else torch.float16)
        torch.testing.assert_close(out.float(), unit_length(y), rtol=0, atol=1e-6 if dtype == torch.float32 else 5e-3)
        torch.testing.assert_close(tails[1][1:], tails[0][1:], rtol=0, atol=0, equal_nan=True)
        held += torch.tensor(new, dtype=torch.int32, device=device)


def test_short_convolution():
    """Sequences in any split, pages in any order, equal one plain convolution; a dummy run writes nothing."""
    torch.manual_seed(0)
    texts, weight = [torch.randn(length, 2, 8) for length in (200, 131)], torch.randn(16, 1, 3)
    tail = torch.full((9, 2, 2, 8), torch.nan)
    held, outs = torch.zeros(2, dtype=torch.int32), [[], []]
    for new in ((1, 64), (1, 1), (62, 1), (64, 2), (2, 63), (70, 0)):
        starts = torch.tensor([0, *new]).cumsum(0).int()
        x = torch.cat([text[h : h + n] for text, h, n in zip(texts, held.tolist(), new, strict=True)])
        for slot in (-1, 0):
            slots = torch.full((len(x),), slot)
            places = TokenPlaces.of(starts, held, TABLE[:2].int(), slots, 64)
            before = tail[1:].clone()
            out = short_convolution(x, weight, tail, places)
            if slot < 0:
                assert torch.equal(before.nan_to_num(7), tail[1:].nan_to_num(7))
        for n in range(2):
            outs[n].append(out[starts[n] : starts[n + 1]])
        held += torch.tensor(new, dtype=torch.int32)
    for text, out in zip(texts, outs, strict=True):
        padded = torch.cat([torch.zeros(2, 16), text.flatten(1)]).T[None]
        expected = silu(conv1d(padded, weight, groups=16))[0].T.view_as(text)
        torch.testing.assert_close(torch.cat(out), expected)


@needs_vllm
@pytest.mark.parametrize("case", CASES)
def test_configs_name_what_vllm_looks_for(case):
    from transformers import AutoConfig

    register()
    keys = json.loads((GOLDEN / case / "config.json").read_text())
    config = AutoConfig.from_pretrained(GOLDEN / case)
    assert config.num_attention_heads == keys["num_heads"]
    assert config.num_key_value_heads == (keys["num_kv_heads"] or keys["num_heads"])
    assert config.head_dim == keys["hidden_size"] // keys["num_heads"]
    assert config.max_position_embeddings == keys.get("max_position_embeddings", 131_072)
    assert type(config)(**config.to_dict()).to_dict() == config.to_dict()


REFUSED = {
    "speculative decoding": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
    "quantised KV cache": {"kv_cache_dtype": "fp8"},
    "KV connector": {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
    "KV cache offloading": {"kv_offloading_size": 1.0},
    "pipeline parallelism": {"pipeline_parallel_size": 2},
    "LoRA": {"enable_lora": True},
    "multiple of 64 tokens": {"block_size": 96},
    "tensor parallel size 3": {"tensor_parallel_size": 3},
}


@needs_vllm
@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("model_type", ["path_attn", "forgetting_transformer"])
def test_refusals_by_name(model_type, what):
    with pytest.raises(UserError, match=what):
        engine.start({"model": str(case_with(model_type)), "skip_tokenizer_init": True, **REFUSED[what]})


@needs_vllm
def test_options():
    pairs = ["max_num_seqs=8", "attention-backend=FLASH_ATTN", "enforce_eager=false", 'compilation_config={"mode": 0}']
    assert parse_options(pairs) == {
        "max_num_seqs": 8,
        "attention_backend": "FLASH_ATTN",
        "enforce_eager": False,
        "compilation_config": {"mode": 0},
    }
    for pair, message in {
        "max_num_seq=8": "did you mean max_num_seqs",
        "seed": "KEY=VALUE",
        "model=x": "the backend sets this itself",
    }.items():
        with pytest.raises(UserError, match=message):
            parse_options([pair])


def test_defaults_follow_the_longest_text():
    assert default_options(70_000, None, v2_runner=True)["max_model_len"] == 70_001
    assert default_options(None, 24 << 30, v2_runner=True)["max_model_len"] is None


@pytest.mark.parametrize(
    ("max_length", "gpu_memory", "step"),
    [
        (4096, 140 << 30, 8192),
        (33_000, 140 << 30, 65_536),
        (65_536, 140 << 30, 65_536),
        (1 << 20, 140 << 30, 65_536),
        (65_536, 80 << 30, 32_768),
        (65_536, 24 << 30, 8192),
        (65_536, None, 8192),
        (None, 140 << 30, 8192),
    ],
)
def test_steps_take_in_a_text_where_memory_allows(max_length, gpu_memory, step):
    assert default_options(max_length, gpu_memory, v2_runner=True)["max_num_batched_tokens"] == step
    assert default_options(max_length, gpu_memory, v2_runner=False)["max_num_batched_tokens"] == 2048


@needs_vllm
def test_beyond_the_trained_window():
    from transformers import GPT2Config, LlamaConfig

    def llama(**rope):
        return LlamaConfig(max_position_embeddings=8192, rope_parameters={"rope_theta": 1e4, **rope})

    plain = llama(rope_type="default")
    assert window_overrides(plain, 8192) == {}
    assert window_overrides(plain, 20_000) == {"max_position_embeddings": 20_000}
    yarn = llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048)
    with pytest.raises(UserError, match=r"20,000 tokens.*rotary scaling yarn.*8,192.*--backend torch"):
        window_overrides(yarn, 20_000)
    with pytest.raises(UserError, match="no rotary positions"):
        window_overrides(GPT2Config(), 5000)
    register()
    from transformers import AutoConfig

    assert window_overrides(AutoConfig.from_pretrained(case_with("transformer")), 100_000) == {}


def test_errors_become_one_line():
    wrapped = (
        "1 validation error for ModelConfig\n  Value error, no such thing [type=value_error, input_value=1]\n more"
    )
    assert engine.reason(ValueError(wrapped)) == "no such thing"
    for memory in ("To serve at least one request with the model's max seq len (9), 1 GiB", "No available memory for"):
        assert "--lengths" in engine.reason(ValueError(memory))


@needs_vllm
def test_a_broken_installation_is_named(monkeypatch):
    assert engine.problem() is None
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    assert "leaves out" in engine.problem()
    monkeypatch.delenv("VLLM_PLUGINS")
    monkeypatch.setattr(engine, "entry_points", lambda group: [])
    assert "not registered" in engine.problem()

    def broken():
        raise ImportError("no module named numbers")

    plugin = SimpleNamespace(name="longeval", value="longeval.models.vllm:register", load=lambda: broken)
    monkeypatch.setattr(engine, "entry_points", lambda group: [plugin])
    assert "does not load: ImportError: no module named numbers" in engine.problem()
    monkeypatch.setattr(engine, "installed_version", lambda: "0.31.0")
    assert "0.32.0 is needed" in engine.problem()
    monkeypatch.setattr(engine, "installed_version", lambda: None)
    assert "not installed" in engine.problem()
