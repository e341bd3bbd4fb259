"""The plugin in a real engine, in this process: golden files, chunks, pages, preemption, prefix caching, backend.

Runs with vLLM's V1 runner, and once more under the V2 runner in a process of its own (`test_vllm_runners.py`).
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
from vllm_engines import (
    CASES,
    CUDA,
    GOLDEN,
    TOLERANCE,
    V2,
    V2_ON_CPU,
    Oracle,
    case_with,
    continue_all,
    golden,
    load,
    metric,
    require_vllm,
    score_all,
    score_at_once,
)

require_vllm()

PAGES = (64, 128, 256, 512)
NEW = 24  # tokens
LENGTHS = (1, 2, 17, 63, 64, 65, 127, 129, 200, 257, 500, 1000, 1777, 2000)


@pytest.fixture(autouse=True)
def interpreted(request, monkeypatch):
    """Under the interpreter one test runs all of vLLM's kernels, the others do without the two slowest."""
    if V2_ON_CPU and request.function is not test_token_scores_name_the_greedy_tokens:
        score_at_once(monkeypatch)


@pytest.fixture(scope="module")
def engines():
    """`engines(folder, **options)`: the engine of these options; the one before it is shut down."""
    current = {}

    def get(folder, **options):
        key = (folder, json.dumps(options, sort_keys=True))
        if key not in current:
            for model in current.values():
                model.close()
            current.clear()
            current[key] = load(folder, **options)
        return current[key]

    yield get
    for model in current.values():
        model.close()


def same_tokens(model, files, margin):
    """Whether greedy tokens are the reference's, up to the first whose two best logits are closer than `margin`."""
    (generation,) = model.generate([files["prompt"].tolist()], NEW)
    same = np.array(generation.ids) == files["ref.gen.ids"][: len(generation.ids)]
    clear = np.logical_and.accumulate(files["ref.gen.margin"] >= margin)
    return same[clear[: len(same)]].all()


@pytest.mark.parametrize("eager", [True, False] if CUDA else [True], ids=lambda eager: "eager" if eager else "graphs")
@pytest.mark.parametrize("number", range(len(CASES)))
def test_golden(engines, number, eager):
    """Every length of the golden files, 2,500 tokens among them, and 24 greedy tokens; pages and chunks take turns."""
    folder = GOLDEN / CASES[number]
    files = golden(folder)
    page, chunk = PAGES[number % 4], (250, 64)[number % 2]
    model = engines(folder, block_size=page, max_num_batched_tokens=chunk, enforce_eager=eager)
    assert model.provenance["runner"] == ("V2" if V2 else "V1")
    for name in [name for name in files if name.startswith("ids.")]:
        ids, length = files[name].tolist(), name.removeprefix("ids.")
        if len(ids) > 1:
            difference = np.abs(model.logprobs(ids) + files[f"ref.nll.{length}"])
            assert difference.max() < TOLERANCE, name
    assert same_tokens(model, files, 1e-3)


@pytest.mark.parametrize("chunk", [250, 64])
@pytest.mark.parametrize("keys", [{"use_w_shortconv": True}, {"use_forget_gate": True}], ids=["conv", "gate"])
def test_concurrent_prompts(engines, keys, chunk):
    """Prompts of 1 to 2000 tokens at once, in chunks that meet page and chunk ends everywhere."""
    folder = case_with("path_attn", **keys)
    text = golden(folder)["ids.2500"].tolist()
    prompts = [text[3 * length % 499 :][:length] for length in LENGTHS]
    model, oracle = engines(folder, block_size=64, max_num_batched_tokens=chunk), Oracle(folder)
    for prompt, output in zip(prompts, score_all(model, prompts, NEW), strict=True):
        oracle.check(prompt, output)


@pytest.mark.parametrize("model_type", ["path_attn", "forgetting_transformer"])
def test_preemption(engines, model_type):
    """Twelve prompts that just fill their pages, in a cache of 13: as they grow, some are thrown out for a while."""
    folder = case_with(model_type)
    text = golden(folder)["ids.2500"].tolist()
    prompts = [text[7 * number :][: 58 + number % 5 + 64 * (number % 4)] for number in range(12)]
    model, oracle = engines(folder, max_length=600, block_size=64, num_gpu_blocks_override=14), Oracle(folder)
    before = metric(model, "vllm:num_preemptions")
    outputs = continue_all(model, prompts, 40)
    assert metric(model, "vllm:num_preemptions") > before
    for prompt, output in zip(prompts, outputs, strict=True):
        oracle.check(prompt, output)


@pytest.mark.parametrize("page", [64, 256])
@pytest.mark.parametrize("model_type", ["path_attn", "forgetting_transformer"])
def test_prefix_caching(engines, model_type, page):
    """A shared prefix of more than a page, two rounds: the second starts on pages that others filled.

    What follows the prefix needs the convolution's inputs from its last page. In the first round vLLM offers pages to
    requests of the step that is only filling them, which have to wait.
    """
    keys = {"use_w_shortconv": True} if model_type == "path_attn" else {}
    folder = case_with(model_type, **keys)
    text = golden(folder)["ids.2500"].tolist()
    shared = text[: 2 * page + 5]
    prompts = [shared + text[1000 + 50 * number :][: 1 + 17 * number] for number in range(5)]
    prompts.append([*text[: 2 * page], 9])  # ends right behind the shared pages
    model, oracle = engines(folder, block_size=page, max_num_batched_tokens=100), Oracle(folder)
    for expected_hits in (False, True):
        before = metric(model, "vllm:prefix_cache_hits")
        outputs = continue_all(model, prompts, 8)
        hits = metric(model, "vllm:prefix_cache_hits") - before
        assert not expected_hits or hits >= len(prompts) * 2 * page
        for prompt, output in zip(prompts, outputs, strict=True):
            oracle.check(prompt, output)


def test_sliding_window(engines, tmp_path):
    """fla counts the query's own token among the window's; text far beyond window and trained length."""
    source, folder = case_with("transformer"), tmp_path / "window"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("golden*"))
    config = json.loads((folder / "config.json").read_text())
    folder.chmod(0o755)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"window_size": 37, "max_position_embeddings": 64}))
    text = golden(source)["ids.2500"].tolist()
    prompts = [text[:36], text[:37], text[:38], text[100:700]]
    model, oracle = engines(folder, max_length=1000, max_num_batched_tokens=250), Oracle(folder)
    for prompt, output in zip(prompts, score_all(model, prompts, 6), strict=True):
        oracle.check(prompt, output)


def test_token_scores_name_the_greedy_tokens(engines):
    folder = case_with("forgetting_transformer")
    files = golden(folder)
    model = engines(folder, block_size=256, max_num_batched_tokens=250)
    text = files["ids.513"].tolist()
    text[100:140] = files["ref.argmax.513"][99:139].tolist()  # the first of these is the argmax for sure
    scores = model.token_scores(text)
    assert scores.greedy[99]
    assert scores.greedy.dtype == np.bool_
    oracle = Oracle(folder)
    logits = np.concatenate([piece.numpy() for piece in oracle.runner.score(text[:-1])])
    assert (scores.greedy == (logits.argmax(1) == text[1:])).all()
    np.testing.assert_allclose(model.logprobs(text), scores.logprobs, atol=1e-5)
    assert len(model.token_scores(text[:1]).logprobs) == 0


def test_generations_agree_with_the_torch_backend(engines, words):
    """Stop strings, several tokens long too, end of sequence, minimum length: the same ids, texts and reasons."""
    from longeval.models.checkpoint import Checkpoint
    from longeval.models.torch_backend import load_torch

    torch_model = load_torch(Checkpoint("words", words), "float32", "cpu", 300)
    text = golden(words.parent / "source")["ids.513"].tolist()
    prompts = [text[:30], text[5:100], text[40:41], text[200:270]]
    free = {g.index: g for g in torch_model.generate(prompts, 20)}
    spelled = free[0].text.split(" ")
    several = " ".join(spelled[3:5])
    model = engines(words, max_length=300, block_size=64)
    lengths = []
    for stop, least in (((), 0), ((several,), 0), ((spelled[2],), 0), ((spelled[2],), 6), ((several,), 6)):
        expected = {g.index: g for g in torch_model.generate(prompts, 20, least, stop)}
        assert {g.index: g for g in model.generate(prompts, 20, least, stop)} == expected
        lengths.append(len(expected[0].ids))
    assert lengths[:3] == [20, 5, 3]
    assert lengths[3] > 6  # the stop word itself is forbidden among the first six
    assert lengths[4] == 6  # it is there before, and counts from then on
    for stop in ((), (several,)):  # one id ends a text
        eos = free[1].ids[4]
        torch_model._eos, model._eos = frozenset({eos}), frozenset({eos})
        expected = {g.index: g for g in torch_model.generate(prompts, 20, 2, stop)}
        assert {g.index: g for g in model.generate(prompts, 20, 2, stop)} == expected
        assert expected[1].finish_reason == "stop"


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A golden checkpoint with a tokenizer of one word per id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    source, base = case_with("path_attn", use_forget_gate=True), tmp_path_factory.mktemp("words")
    shutil.copytree(source, base / "source")
    shutil.copytree(source, base / "words", ignore=shutil.ignore_patterns("golden*", "generation_config.json"))
    (base / "words").chmod(0o755)
    size = json.loads((source / "config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(base / "words" / "tokenizer.json"))
    return base / "words"


def test_results_stream(engines):
    """Short texts come out while long ones run; a consumer that stops leaves nothing behind in the engine."""
    folder = case_with("forgetting_transformer")
    text = golden(folder)["ids.2500"].tolist()
    model = engines(folder, block_size=256, max_num_batched_tokens=250)
    prompts = [text[n : n + 20] for n in range(100)]
    generations = model.generate([*prompts[:3], text[:1000], *prompts[3:]], 4)
    assert next(generations).index != 3
    assert 0 < model.engine.get_num_unfinished_requests() <= model._window < 100
    generations.close()
    assert not model.engine.has_unfinished_requests()
    assert sorted(g.index for g in model.generate([text[n : n + 9] for n in range(20)], 2)) == list(range(20))


def test_over_long_text_is_refused(engines):
    from longeval.errors import UserError

    model = engines(case_with("forgetting_transformer"), block_size=256, max_num_batched_tokens=250)
    with pytest.raises(UserError, match="2,700 tokens and 1 new"):
        model.token_scores([5] * 2700)
    with pytest.raises(UserError, match="larger max_length"):
        next(model.generate([[5] * 2590], 20))


def test_too_small_a_cache_is_refused_with_the_numbers():
    from longeval.errors import UserError

    with pytest.raises(UserError, match=r"100,?001.*GiB.*GiB.*estimated maximum model length.*--lengths"):
        load(case_with("path_attn"), max_length=100_000, kv_cache_memory_bytes=1 << 22)


def test_bfloat16_is_as_exact_as_fla(engines):
    """Losses, pooled over all cases and lengths >= 64, as in test_golden.py."""
    ours, theirs = [], []
    for case in CASES:
        files = golden(GOLDEN / case)
        model = engines(GOLDEN / case, dtype="bfloat16", enforce_eager=True)
        for length in (64, 65, 200, 513):
            exact = files[f"ref.nll.{length}"]
            ours.append(np.abs(-model.logprobs(files[f"ids.{length}"].tolist()) - exact))
            theirs.append(np.abs(files[f"fla_bf16.nll.{length}"] - exact))
        assert same_tokens(model, files, 0.3), case
    mine, fla = np.concatenate(ours), np.concatenate(theirs)
    mean, tail = mine.mean() / fla.mean(), np.quantile(mine, 0.999) / np.quantile(fla, 0.999)
    print(f"error over fla's: mean {mean:.2f}, 99.9 % {tail:.2f}")
    assert mean <= 1.2
    assert tail <= 1.5


@pytest.mark.skipif(V2_ON_CPU, reason="Dynamo does not trace interpreted kernels")
def test_compiled_model(engines, monkeypatch):
    """Traced by Dynamo: the op is opaque to it and finds its layer by name."""
    folder = case_with("path_attn", use_w_shortconv=True)
    text = golden(folder)["ids.2500"].tolist()
    options = {"enforce_eager": False, "compilation_config": {"backend": "eager"}}
    model, oracle = engines(folder, max_length=600, block_size=64, **options), Oracle(folder)
    prompts = [text[:5], text[9:300]]
    for prompt, output in zip(prompts, score_all(model, prompts, 5), strict=True):
        oracle.check(prompt, output)


@pytest.mark.skipif(not V2_ON_CPU, reason="needs Triton's interpreter")
@pytest.mark.parametrize("keys", [{"use_w_shortconv": True}, {"use_forget_gate": True}], ids=["conv", "gate"])
def test_step_of_the_kernels(engines, keys, monkeypatch):
    """What runs on CUDA, its Triton kernels interpreted: the same batches, prefixes cached, pages reused."""
    from longeval.models.vllm.attention import StepBuilder
    from longeval.models.vllm.step import CudaStep, Fixed

    fixed = Fixed(4096)
    steps = []

    def build(self, common_prefix_len, common, fast_build=False):
        steps.append(CudaStep.of(common, self.kv_cache_spec.block_size, fixed))
        return steps[-1]

    monkeypatch.setattr(StepBuilder, "build", build)
    folder = case_with("path_attn", **keys)
    text = golden(folder)["ids.2500"].tolist()
    prompts = [text[:1], text[:70], [*text[:130], 4], [*text[:129], 3, 4]]
    model, oracle = engines(folder, max_length=200, block_size=64, max_num_batched_tokens=100), Oracle(folder)
    for _ in range(2):
        for prompt, output in zip(prompts, continue_all(model, prompts, 4), strict=True):
            oracle.check(prompt, output)
    assert any(step.decodes and step.plan is not None for step in steps)
    assert any(step.decodes and step.plan is None for step in steps)
    addresses = [step.decode_pages.items.data_ptr() for step in steps if step.decodes]
    assert all(first == second for first, second in pairwise(addresses))
