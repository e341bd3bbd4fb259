"""Prefill without a cache against the float64 definition, on a GPU or in Triton's interpreter."""

import dataclasses
import math

import pytest
import torch
from cases import error, rows_after, tokens, with_gates

from longeval.kernels.attention import New, prefill
from longeval.kernels.check import rows_of
from longeval.kernels.plan import Plan
from longeval.kernels.pool import Shape

LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129]
MODES = {"causal": (False, False), "fox": (False, True), "path": (True, False), "path-fox": (True, True)}
modes = pytest.mark.parametrize(("path", "gate"), list(MODES.values()), ids=list(MODES))
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: too long for the interpreter, or bfloat16")


def shape(path, gate, d=16, heads=2, kv_heads=1, dtype=torch.float32):
    return Shape(heads, kv_heads, d, dtype, path, gate)


def run(batch, dtype, device, each=None):
    cu = torch.tensor(batch.starts, device=device)
    out = prefill(batch.rule, batch.new(dtype, device), Plan.of(cu, batch.starts[-1], each))
    return error(out, batch.rounded(dtype).expected())


@pytest.mark.parametrize("kv_heads", [1, 2])
@modes
def test_packed_lengths_around_every_tile_edge(path, gate, kv_heads, device):
    assert run(tokens(LENGTHS, shape(path, gate, kv_heads=kv_heads)), torch.float32, device) < 5e-6


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("d", "dtype", "bound"), [(16, torch.float32, 5e-6), (128, torch.float16, 1.5e-3)])
def test_far_spans(heads, d, dtype, bound, device):
    assert run(tokens([513, 301], shape(True, True, d, heads)), dtype, device, each=2) < bound


@pytest.mark.parametrize(("d", "heads", "kv_heads"), [(32, 3, 1), (64, 1, 1), (128, 2, 1)])
@modes
def test_head_dimensions_and_groups(path, gate, d, heads, kv_heads, device):
    assert run(tokens([70], shape(path, gate, d, heads, kv_heads)), torch.float16, device) < 1.5e-3


@pytest.mark.parametrize("beta", [1e-6, 1.0, 1.999])
@pytest.mark.parametrize("log_f", [-1e-6, -30.0])
def test_extreme_gates_and_transitions(beta, log_f, device):
    batch = tokens([200], shape(True, True, heads=1), beta=beta, log_f=log_f)
    assert run(batch, torch.float32, device) < 5e-6


def test_ill_conditioned_chunks(device):
    batch = tokens([200], shape(True, False, heads=1), similar=0.99, beta=1.999)
    assert run(batch, torch.float32, device) < 1e-4
    assert run(batch, torch.float16, device) < 2e-2


@pytest.mark.parametrize("strong", [-30.0, -1000.0, -math.inf])
@pytest.mark.parametrize("path", [False, True])
def test_strong_gates_cost_no_digits(path, strong, device):
    batch = tokens([300], shape(path, True, heads=2))
    token = torch.arange(300)
    for weak in (token >= 150, token % 64 < 40, token % 50 > 0):
        assert run(with_gates(batch, weak, strong), torch.float32, device) < 1e-6


@pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("path", [False, True])
def test_a_gate_that_is_no_number_is_not_hidden(path, device):
    batch = tokens([200, 90], shape(path, True))
    batch.log_f[70, 1] = torch.nan
    plan = Plan.of(torch.tensor(batch.starts, device=device), 290)
    out = prefill(batch.rule, batch.new(torch.float32, device), plan).cpu()
    assert torch.equal(out.isnan(), rows_after(70, 200, head=1, like=out))


@modes
def test_garbage_around_the_tokens_is_never_read(path, gate, device):
    batch = tokens([66], shape(path, gate))
    new = batch.new(torch.float32, device)

    def buried(x):
        """x inside a larger tensor of NaN: other strides, and NaN before, after and between."""
        if x is None or x.dim() == 2:
            return x
        big = torch.full((x.shape[0] + 8, x.shape[1] + 2, x.shape[2] + 16), torch.nan, device=device)
        big[4:-4, 1:-1, :-16] = x
        return big[4:-4, 1:-1, :-16]

    dirty = New(*(buried(getattr(new, f.name)) for f in dataclasses.fields(New)))
    plan = Plan.of(torch.tensor([0, 66], device=device), 66)
    assert torch.equal(prefill(batch.rule, dirty, plan), prefill(batch.rule, new, plan))


def test_tokens_past_the_last_sequence_do_not_matter(device):
    batch = tokens([70, 20], shape(True, True))
    new = batch.new(torch.float32, device)
    new.v[70:] = torch.nan
    new.k[70:] = torch.nan
    out = prefill(batch.rule, new, Plan.of(torch.tensor([0, 70], device=device), 90))
    assert error(out[:70], batch.rounded(torch.float32).expected()[:70]) < 5e-6


def test_sampled_rows_are_the_definition():
    batch = tokens([150], shape(True, True, heads=4, kv_heads=2))
    new = batch.new(torch.float32, "cpu")
    got = rows_of(batch.rule, [0, 63, 64, 149], new.q, new.k, new.v, new.w, new.beta, new.log_f)
    assert error(got, batch.rounded(torch.float32).expected()[[0, 63, 64, 149]]) < 1e-12


@gpu
@pytest.mark.parametrize(
    ("mode", "d", "kv_heads"),
    [
        ("causal", 64, 2),
        ("path", 64, 4),
        *(("path-fox", d, 4) for d in (16, 32, 64, 128)),
        *(("path-fox", d, 2) for d in (64, 128)),
        *(("fox", d, 2) for d in (16, 128, 256)),
    ],
)
def test_bf16_is_as_good_as_pytorch_in_bf16(mode, d, kv_heads, device):
    batch = tokens([513, 1000], shape(*MODES[mode], d, 4, kv_heads)).rounded(torch.bfloat16)
    plain = dataclasses.replace(
        batch,
        **{
            f: None if getattr(batch, f) is None else getattr(batch, f).bfloat16()
            for f in ("q", "k", "v", "w", "beta", "log_f")
        },
    )
    assert run(batch, torch.bfloat16, device) <= 1.2 * error(plain.expected(), batch.expected())


@gpu
@pytest.mark.parametrize(("mode", "d"), [*(("path-fox", d) for d in (16, 32, 64)), ("fox", 128)])
def test_float32_at_every_head_dimension(mode, d, device):
    assert run(tokens([129, 511, 512], shape(*MODES[mode], d)), torch.float32, device) < 5e-6


@gpu
@modes
def test_lengths_that_are_timed(path, gate, device):
    for length, dtype, bound in ((4097, torch.float32, 5e-6), (65536, torch.bfloat16, 6e-3)):
        batch = tokens([length], shape(path, gate, 64, 2, 1))
        new = batch.new(dtype, device)
        out = prefill(batch.rule, new, Plan.of(torch.tensor([0, length], device=device), length))
        rows = [0, 1, length // 3, length - 1]
        exact = rows_of(batch.rule, rows, new.q, new.k, new.v, new.w, new.beta, new.log_f)
        assert error(out[rows], exact.cpu()) < bound
        again = prefill(batch.rule, new, Plan.of(torch.tensor([0, length], device=device), length))
        assert torch.equal(out, again)


@gpu
@pytest.mark.parametrize("group", range(1, 9))
def test_every_group_size(group, device):
    batch = tokens([300, 5], shape(True, True, 64, group, 1))
    assert run(batch, torch.bfloat16, device) < 4e-3
