"""The paged cache: prefill in any split, then decode, equals one whole prefill."""

import dataclasses
import math

import pytest
import torch
from cases import error, rows_after, tokens, with_gates

from longeval.kernels.attention import Cached, append, decode, prefill
from longeval.kernels.batched import PagedAttention
from longeval.kernels.paged_decode import merge
from longeval.kernels.pages import Householder
from longeval.kernels.plan import Plan
from longeval.kernels.pool import PageLayout, Shape, supports

MODES = {"causal": (False, False), "fox": (False, True), "path": (True, False), "path-fox": (True, True)}
modes = pytest.mark.parametrize(("path", "gate"), list(MODES.values()), ids=list(MODES))
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: too long for the interpreter, or bfloat16")


def shape(path, gate, d=16, heads=2, kv_heads=1, dtype=torch.float32):
    return Shape(heads, kv_heads, d, dtype, path, gate)


class Serving:
    """Sequences that grow call by call on pages in random order, every unwritten byte of which is NaN."""

    def __init__(self, batch, shape, page_size, device):
        self.batch, self.device, self.dtype = batch, device, shape.dtype
        self.lengths = [hi - lo for lo, hi in zip(batch.starts, batch.starts[1:], strict=False)]
        n, pages = len(self.lengths), -(-max(self.lengths) // page_size)
        self.pool = PageLayout(shape, page_size).empty(n * pages + 1, device)
        for field in dataclasses.fields(self.pool)[1:]:
            if getattr(self.pool, field.name) is not None:
                getattr(self.pool, field.name).fill_(torch.nan)
        order = torch.randperm(n * pages, generator=torch.Generator().manual_seed(0)) + 1
        self.table = order.view(n, pages).int().to(device)
        self.at = [0] * n
        self.out = torch.full((batch.starts[-1], shape.heads, shape.head_dim), torch.nan, dtype=torch.float64)

    def _next(self, ends):
        spans = list(zip(self.at, ends, strict=True))
        cu = torch.tensor([0] + [b - a for a, b in spans]).cumsum(0).to(self.device)
        count = int(cu[-1])
        new = self.batch.new(self.dtype, self.device, spans)
        context = torch.tensor(self.at, device=self.device)
        return spans, new, cu, count, Cached.of(self.pool, self.table, context, cu, count)

    def _keep(self, spans, out):
        at = 0
        for first, (lo, hi) in zip(self.batch.starts, spans, strict=False):
            self.out[first + lo : first + hi] = out[at : at + hi - lo].double().cpu()
            at += hi - lo
        self.at = [hi for _, hi in spans]

    def prefill(self, *ends):
        ends = [min(e, n) for e, n in zip(ends, self.lengths, strict=True)]
        spans, new, cu, count, cached = self._next(ends)
        plan = Plan.of(cu, count, each=2)
        self._keep(spans, prefill(self.batch.rule, new, plan, cached))
        append(new, plan.starts, cached)

    def decode(self, steps):
        for _ in range(steps):
            spans, new, cu, _, cached = self._next([a + 1 for a in self.at])
            append(new, cu.int(), cached)
            lengths = torch.tensor([hi for _, hi in spans], dtype=torch.int32, device=self.device)
            self._keep(spans, decode(self.batch.rule, new.q, self.pool, self.table, lengths, max(self.lengths)))

    def error(self):
        assert self.at == self.lengths
        return error(self.out, self.batch.rounded(self.dtype).expected())


@modes
def test_two_sequences_in_pieces_then_decode(path, gate, device):
    layer = shape(path, gate)
    serving = Serving(tokens([205, 71], layer), layer, 128, device)
    for ends in ((100, 3), (130, 3), (131, 64), (200, 66)):  # one sequence may have nothing new
        serving.prefill(*ends)
    serving.decode(5)
    assert serving.error() < 5e-6


@pytest.mark.parametrize("step", [1, 7, 64, 100, 1000])
def test_any_split_into_chunks(step, device):
    layer = shape(True, True, heads=1)
    length = 140 if step > 7 else 67
    serving = Serving(tokens([length], layer), layer, 64, device)
    for end in range(step, length + step - 2, step):
        serving.prefill(min(end, length - 2))
    serving.decode(2)
    assert serving.error() < 5e-6


@pytest.mark.parametrize("page_size", [128, 256, 512])
def test_page_sizes(page_size, device):
    layer = shape(True, True, heads=1)
    serving = Serving(tokens([page_size + 70], layer), layer, page_size, device)
    serving.prefill(page_size - 10)
    serving.prefill(page_size + 68)
    serving.decode(2)
    assert serving.error() < 5e-6


@pytest.mark.parametrize("strong", [-30.0, -1000.0, -math.inf])
@pytest.mark.parametrize("path", [False, True])
def test_strong_gates_cost_no_digits(path, strong, device):
    layer = shape(path, True)
    batch, token = tokens([200], layer), torch.arange(200)
    for weak in (token >= 100, token % 64 < 40, token % 50 > 0):
        serving = Serving(with_gates(batch, weak, strong), layer, 128, device)
        for end in (70, 150, 190):
            serving.prefill(end)
        serving.decode(10)
        assert serving.error() < 1e-6


@pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("path", [False, True])
def test_a_gate_that_is_no_number_is_not_hidden(path, device):
    layer = shape(path, True)
    batch = tokens([130, 90], layer)
    batch.log_f[70, 1] = torch.nan
    serving = Serving(batch, layer, 64, device)
    for ends in ((66, 80), (128, 88)):
        serving.prefill(*ends)
    serving.decode(2)
    assert torch.equal(serving.out.isnan(), rows_after(70, 130, head=1, like=serving.out))


def test_half_precision_over_many_pages(device):
    layer = shape(True, True, 16, 4, 1, torch.float16)
    serving = Serving(tokens([330], layer), layer, 64, device)
    serving.prefill(322)
    serving.decode(8)
    assert serving.error() < 1.5e-3


def test_a_full_page_never_changes_again(device):
    layer = shape(True, True, heads=1)
    serving = Serving(tokens([140], layer), layer, 64, device)
    serving.prefill(64)
    first = int(serving.table[0, 0])
    fields = (serving.pool.k, serving.pool.v, serving.pool.f, serving.pool.g)
    before = [field[first].clone() for field in fields]
    serving.prefill(138)
    serving.decode(2)
    assert all(torch.equal(old, field[first]) for old, field in zip(before, fields, strict=True))


def test_an_unused_row_of_a_decode_batch(device):
    layer = shape(True, True)
    batch = tokens([10], layer)
    serving = Serving(batch, layer, 64, device)
    serving.prefill(10)
    q = batch.new(torch.float32, device).q[9:].repeat(2, 1, 1)
    table = torch.cat([serving.table, torch.full_like(serving.table, 10**6)])
    lengths = torch.tensor([10, 0], dtype=torch.int32, device=device)
    out = decode(batch.rule, q, serving.pool, table, lengths, 64)
    assert error(out[:1], batch.rounded(torch.float32).expected()[9:]) < 5e-6
    assert torch.equal(out[1], torch.zeros_like(out[1]))


def test_more_parts_than_one_tile_are_merged(device):
    """With empty ones among them, whose output is never read, up to a whole tile in front."""
    g = torch.Generator().manual_seed(0)
    o, lse = torch.randn(2, 3, 70, 16, generator=g), 4 * torch.randn(2, 3, 70, generator=g)
    lse[:, 0, :40] = -torch.inf
    lse[:, 1, ::3] = -torch.inf
    expected = ((lse.double() * math.log(2)).softmax(-1).unsqueeze(-1) * o).sum(2)
    o[lse == -torch.inf] = torch.nan
    o, lse, lengths = (x.to(device) for x in (o, lse, torch.tensor([7, 0], dtype=torch.int32)))
    out = torch.full((2, 3, 16), torch.nan, device=device)
    merge[(2, 3)](o, lse, out, out.stride(0), out.stride(1), lengths, 70, HQ=3, D=16, TILE=32, num_warps=1)
    assert error(out[0], expected[0]) < 5e-6
    assert torch.equal(out[1], torch.zeros_like(out[1]))


def test_padded_batches(device):
    layer = shape(True, True)
    batch = tokens([70, 66], layer).rounded(torch.float32)
    attention = PagedAttention.empty(batch.rule, layer, 2, 70, device, page_size=64)

    def padded(x, spans):
        rows = [x[first + lo : first + hi].float() for first, (lo, hi) in zip(batch.starts, spans, strict=False)]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=torch.nan).to(device)

    outs = []
    for spans in ([(0, 68), (0, 64)], [(68, 69), (64, 65)], [(69, 70), (65, 66)]):
        q, k, v, w, beta, log_f = (
            padded(x, spans) for x in (batch.q, batch.k, batch.v, batch.w, batch.beta, batch.log_f)
        )
        new = torch.tensor([hi - lo for lo, hi in spans], device=device)
        outs.append(attention.attend(q, k, v, Householder(w, beta), log_f, new))
    got = torch.cat([outs[0][0, :68], outs[1][0], outs[2][0], outs[0][1, :64], outs[1][1], outs[2][1]])
    assert error(got, batch.expected()) < 5e-6
    assert torch.equal(outs[0][1, 64:], torch.zeros_like(outs[0][1, 64:]))


def test_layout_and_limits():
    layer = shape(True, True, 64, 4, 2, torch.bfloat16)
    layout = PageLayout(layer, 512)
    offsets = layout.offsets()
    assert offsets["k"] == 0
    assert all(start % 128 == 0 for start in offsets.values())
    assert layout.nbytes == 2 * 512 * 64 * 2 + 2 * 512 * 4 + 64 * 64 * 2 + 64 * 64 * 2 + 64 * 4
    pool = layout.empty(3)
    assert pool.k.shape == (3, 2, 512, 64)
    assert pool.g is not None
    assert pool.g.shape == (3, 2, 2, 512)
    assert supports(layer) == []
    assert supports(shape(False, True, 128)) == []
    assert len(supports(shape(True, True, 128))) == 1
    assert len(supports(shape(False, True, 256))) == 1
    assert supports(shape(True, False, 256, dtype=torch.bfloat16)) == [
        "head dimension 256 with PaTH (its d x d transitions do not fit in shared memory)"
    ]
    assert len(supports(Shape(3, 2, 40, torch.float64), page_size=100, window=8)) == 5


@gpu
def test_a_decode_step_in_a_cuda_graph(device):
    layer = shape(True, True, 64, 4, 2, torch.bfloat16)
    batch = tokens([200, 130], layer)
    serving = Serving(batch, layer, 64, device)
    serving.prefill(190, 120)
    _, new, cu, _, cached = serving._next([191, 121])
    lengths = torch.tensor([191, 121], dtype=torch.int32, device=device)
    fields = [getattr(serving.pool, field.name) for field in dataclasses.fields(serving.pool)[1:]]
    before = [field.clone() for field in fields]
    append(new, cu.int(), cached)
    eager = decode(batch.rule, new.q, serving.pool, serving.table, lengths, 256)
    for field, old in zip(fields, before, strict=True):  # a token is appended once
        field.copy_(old)
    graph = torch.cuda.CUDAGraph()
    starts = cu.int()
    with torch.cuda.graph(graph):
        append(new, starts, cached)
        replayed = decode(batch.rule, new.q, serving.pool, serving.table, lengths, 256)
    graph.replay()
    assert torch.equal(eager, replayed)


@gpu
@pytest.mark.parametrize(("mode", "d"), [*((mode, 64) for mode in MODES), ("path-fox", 128), ("fox", 256)])
def test_bf16_in_pieces(mode, d, device):
    layer = shape(*MODES[mode], d, 4, 2, torch.bfloat16)
    serving = Serving(tokens([1205, 301], layer), layer, 256, device)
    for ends in ((300, 3), (330, 3), (1031, 164), (1200, 296)):
        serving.prefill(*ends)
    serving.decode(5)
    assert serving.error() < 4e-3


@gpu
def test_float32_in_pieces(device):
    layer = shape(True, True, 64, 2, 1)
    serving = Serving(tokens([205, 71], layer), layer, 128, device)
    for ends in ((100, 3), (130, 3), (200, 66)):
        serving.prefill(*ends)
    serving.decode(5)
    assert serving.error() < 5e-6


@gpu
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(8, 8, 64), (4, 4, 128), (8, 2, 64)])
@pytest.mark.parametrize("held", [0, 1000])
def test_a_prefill_needs_little_memory(heads, kv_heads, d, held, device):
    """Beyond inputs, output and cache at most six times the new keys, whatever the prefix."""
    layer = shape(True, True, d, heads, kv_heads, torch.bfloat16)
    new_tokens = 8192
    serving = Serving(tokens([held + new_tokens], layer), layer, 512, device)
    if held:
        serving.prefill(held)
    _, new, cu, count, cached = serving._next([held + new_tokens])
    plan = Plan.of(cu, count)
    for _ in range(2):  # the first call compiles
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = prefill(serving.batch.rule, new, plan, cached if held else None)
        extra = torch.cuda.max_memory_allocated() - before - out.nbytes
        del out
    assert extra <= 6 * new.k.nbytes
