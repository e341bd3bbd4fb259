"""One engine step's metadata, and the seam between vLLM's batch and the attention that runs it.

`CpuStep` runs the readable definition, `CudaStep` the Triton kernels; both build once per step what all layers share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from longeval.kernels.pages import Householder
from longeval.kernels.pool import Pool
from longeval.kernels.reference import ScoreRule
from longeval.models.vllm import definition
from longeval.models.vllm.shortconv import TokenPlaces, short_convolution, unit_length

if TYPE_CHECKING:
    from vllm.v1.attention.backend import CommonAttentionMetadata

    from longeval.kernels.attention import New
    from longeval.kernels.plan import Blocks, Plan


@dataclass(frozen=True)
class Packed:
    """New tokens of a step: q [T, HQ, d]; k, v, w [T, H, d]; beta [T, H]; log_f [T, HQ]."""

    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor | None
    beta: Tensor | None
    log_f: Tensor | None

    def slice(self, start: int, end: int) -> Packed:
        def cut(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[start:end]

        return Packed(
            self.q[start:end], self.k[start:end], self.v[start:end], cut(self.w), cut(self.beta), cut(self.log_f)
        )

    def first(self, count: int) -> Packed:
        return self.slice(0, count)

    @property
    def path(self) -> Householder | None:
        return None if self.w is None or self.beta is None else Householder(self.w, self.beta)


class Step(Protocol):
    """`count`: tokens that are real, the rest of every tensor is padding."""

    @property
    def count(self) -> int: ...

    def unit_w(self, w: Tensor, conv: Tensor | None, tail: Tensor | None) -> Tensor:
        """w [T, H, d] convolved by `conv` [H * d, 1, 3], where there is one, and normalised; `tail` is brought up."""
        ...

    def attend(self, pool: Pool, rule: ScoreRule, new: Packed, out: Tensor) -> None:
        """Appends `new` to the pages and writes their attention to `out`."""
        ...


@dataclass(frozen=True)
class CpuStep:
    """`starts`, `held`: of the requests with something to write, on the host; table [N, pages]."""

    count: int
    tokens: TokenPlaces
    starts: list[int]
    held: list[int]
    table: Tensor

    @staticmethod
    def of(common: CommonAttentionMetadata, page_size: int) -> CpuStep:
        n, count = common.num_reqs, common.num_actual_tokens
        starts, lengths = common.query_start_loc[: n + 1], common.seq_lens[:n]
        held = lengths - starts.diff()
        table, slots = common.block_table_tensor[:n], common.slot_mapping[:count]
        tokens = TokenPlaces.of(starts, held, table, slots, page_size)
        # A dummy run has plausible lengths but no slots; it must not write. Such requests stand behind all real ones.
        first = starts[:-1].long().clamp(max=max(count - 1, 0))
        live = int(((starts.diff() > 0) & (slots[first] >= 0)).sum()) if count else 0
        return CpuStep(count, tokens, starts[: live + 1].tolist(), held[:live].tolist(), table[:live])

    def unit_w(self, w: Tensor, conv: Tensor | None, tail: Tensor | None) -> Tensor:
        if conv is not None and tail is not None:
            w = short_convolution(w, conv, tail, self.tokens)
        return unit_length(w)

    def attend(self, pool: Pool, rule: ScoreRule, new: Packed, out: Tensor) -> None:
        out[self.starts[-1] :] = 0
        definition.attend(pool, rule, self.table, self.starts, self.held, new.q, new.k, new.v, new.path, new.log_f, out)


class Fixed:
    """Tensors at addresses that never change: a captured decode graph reads them again at every replay."""

    def __init__(self, rows: int) -> None:
        """`rows`: the most that any of them needs."""
        self._rows = rows
        self._buffers: dict[str, Tensor] = {}

    def keep(self, name: str, value: Tensor) -> Tensor:
        """The same values in this name's buffer."""
        if name not in self._buffers:
            self._buffers[name] = value.new_zeros(self._rows, *value.shape[1:])
        buffer = self._buffers[name][: len(value)]
        return buffer.copy_(value)


@dataclass(frozen=True)
class CudaStep:
    """Tables are built on the device, without a host synchronisation.

    starts [N + 1], lengths (with the new tokens) and held (without) [N], table [N, pages]: all int32. The first
    `decodes` requests have at most one new token each and write to `decode_pages`; the others are `plan`'s. `longest`
    bounds lengths.
    """

    count: int
    tokens: TokenPlaces
    starts: Tensor
    lengths: Tensor
    held: Tensor
    table: Tensor
    longest: int
    decodes: int
    decode_pages: Blocks | None
    plan: Plan | None
    prefill_pages: Blocks | None

    @staticmethod
    def of(common: CommonAttentionMetadata, page_size: int, fixed: Fixed) -> CudaStep:
        from vllm.v1.attention.backends.utils import split_decodes_and_prefills

        from longeval.kernels.plan import Plan

        n, count = common.num_reqs, common.num_actual_tokens
        decodes, prefills, decode_tokens, prefill_tokens = split_decodes_and_prefills(common, decode_threshold=1)
        starts, lengths, table = common.query_start_loc[: n + 1], common.seq_lens[:n], common.block_table_tensor[:n]
        slots = common.slot_mapping[:count]
        held = fixed.keep("held", lengths - starts.diff())
        tokens = TokenPlaces.of(starts, held, table, slots, page_size)
        tokens = replace(
            tokens,
            sequence=fixed.keep("sequence", tokens.sequence),
            position=fixed.keep("position", tokens.position),
            fresh=fixed.keep("fresh", tokens.fresh),
            keep=fixed.keep("keep", tokens.keep),
        )
        # A dummy run has plausible lengths but no slots; it must not write.
        live = slots[starts[:-1].long().clamp(max=count - 1)] >= 0
        decode_pages = plan = prefill_pages = None
        if decodes:
            pages = _written(starts[: decodes + 1], held[:decodes], live[:decodes], decode_tokens, page_size)
            decode_pages = replace(pages, items=fixed.keep("items", pages.items), base=fixed.keep("base", pages.base))
        if prefills:
            own = starts[decodes:] - starts[decodes]
            plan = Plan.of(own, prefill_tokens)
            prefill_pages = _written(own, held[decodes:], live[decodes:], prefill_tokens, page_size)
        return CudaStep(
            count, tokens, starts, lengths, held, table, common.max_seq_len, decodes, decode_pages, plan, prefill_pages
        )

    def unit_w(self, w: Tensor, conv: Tensor | None, tail: Tensor | None) -> Tensor:
        from longeval.models.vllm.shortconv_kernel import unit_w

        return unit_w(w, conv, tail, self.tokens)

    def attend(self, pool: Pool, rule: ScoreRule, new: Packed, out: Tensor) -> None:
        from longeval.kernels import attention as kernels

        d = self.decodes
        if self.decode_pages is not None:
            token = _new(new.first(d))
            cached = kernels.Cached(pool, self.table[:d], self.held[:d], self.decode_pages)
            kernels.append(token, self.starts[: d + 1], cached)
            out[:d] = kernels.decode(rule, token.q, pool, self.table[:d], self.lengths[:d], self.longest)
        if self.plan is not None and self.prefill_pages is not None:
            chunk = _new(new.slice(d, self.count))
            cached = kernels.Cached(pool, self.table[d:], self.held[d:], self.prefill_pages)
            out[d:] = kernels.prefill(rule, chunk, self.plan, cached)
            kernels.append(chunk, self.plan.starts, cached)


def _new(packed: Packed) -> New:
    from longeval.kernels.attention import New

    return New(packed.q, packed.k, packed.v, packed.w, packed.beta, packed.log_f)


def _written(starts: Tensor, held: Tensor, live: Tensor, tokens: int, page_size: int) -> Blocks:
    """The pages that live requests write to."""
    from longeval.kernels.plan import Blocks

    lengths = starts.diff().long()
    bound = min(tokens, tokens // page_size + 2 * len(lengths))
    pages = Blocks.of(lengths, page_size, bound, skipped=held.long() % page_size)
    sequence, page = pages.items.unbind(1)
    writes = (sequence >= 0) & live[sequence.clamp(min=0)]
    return replace(pages, items=torch.stack([torch.where(writes, sequence, -1), page], 1).int())
