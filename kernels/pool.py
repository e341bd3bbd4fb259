"""The one place for what the kernels accept and how a cached page is laid out.

`Rule` says which attention, `supports` what the kernels cannot do and why, `PageLayout` where the fields of a page lie
in its bytes, `Pool` is a layer's pages as typed views.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longeval.kernels.pages import CHUNK

ALIGNMENT = 128  # bytes; every field of a page starts on it, so that all its loads are 16 bytes wide
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Shape:
    """What a layer's attention looks like. `path`: Householder transitions; `gate`: a forget gate per query head."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    path: bool = False
    gate: bool = False

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


def supports(shape: Shape, page_size: int = 512, window: int | None = None) -> list[str]:
    """Why the kernels cannot serve this layer, one reason each; an empty list means that they can."""
    d, reasons = shape.head_dim, []
    if shape.dtype not in DTYPES:
        reasons.append(f"dtype {shape.dtype} (bfloat16, float16 and float32 are implemented)")
    if d not in (16, 32, 64, 128, 256):
        reasons.append(f"head dimension {d} (tiles are 16, 32, 64, 128 or 256 wide)")
    if shape.path and d == 256:
        reasons.append("head dimension 256 with PaTH (its d x d transitions do not fit in shared memory)")
    if shape.dtype == torch.float32 and d >= (128 if shape.path else 256):
        reasons.append(f"float32 at head dimension {d} (tiles and operands do not fit in shared memory)")
    if shape.kv_heads < 1 or shape.heads % shape.kv_heads:
        reasons.append(f"{shape.heads} query heads over {shape.kv_heads} kv heads (must be a multiple)")
    if page_size % CHUNK or page_size < CHUNK:
        reasons.append(f"page size {page_size} (must be a multiple of {CHUNK})")
    if window is not None:
        reasons.append("a sliding window (no kernel applies one)")
    return reasons


@dataclass(frozen=True)
class PageLayout:
    """The fields of one page of `size` tokens and one kv head, one after the other in `nbytes` bytes.

    | field | shape | dtype | what |
    |---|---|---|---|
    | k | [P, d] | float16 for 16-bit PaTH, else the model's | keys, see `paged.py` |
    | v | [P, d] | the model's | values |
    | g | [G, P] | float32 | sum of log f from each token to the page's newest, inclusive; gated models |
    | f | [d, d] | as k | product of the finished chunks' transitions; PaTH |
    | w | [64, d] | as k | of the open chunk; PaTH |
    | beta | [64] | float32 | of the open chunk; PaTH |

    float16 because carried keys and F are rounded once per chunk, and w once: three bits more than bfloat16, as long as
    no key entry exceeds 65504.
    """

    shape: Shape
    size: int = 512

    @property
    def key_dtype(self) -> torch.dtype:
        carried = self.shape.path and self.shape.dtype != torch.float32
        return torch.float16 if carried else self.shape.dtype

    def fields(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """name -> (shape, dtype), in the order of the page's bytes."""
        P, d = self.size, self.shape.head_dim
        fields: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "k": ((P, d), self.key_dtype),
            "v": ((P, d), self.shape.dtype),
        }
        if self.shape.gate:
            fields["g"] = ((self.shape.group, P), torch.float32)
        if self.shape.path:
            fields["f"] = ((d, d), self.key_dtype)
            fields["w"] = ((CHUNK, d), self.key_dtype)
            fields["beta"] = ((CHUNK,), torch.float32)
        return fields

    def offsets(self) -> dict[str, int]:
        """name -> first byte; `nbytes` stands under ''."""
        offsets, at = {}, 0
        for name, (shape, dtype) in self.fields().items():
            offsets[name] = at
            size = torch.Size(shape).numel() * dtype.itemsize
            at += -(-size // ALIGNMENT) * ALIGNMENT
        return {**offsets, "": at}

    @property
    def nbytes(self) -> int:
        return self.offsets()[""]

    def carve(self, memory: Tensor) -> Pool:
        """Typed views of `memory` [pages, H, nbytes] uint8 or int8, whose last dimension is contiguous."""
        offsets, views = self.offsets(), {}
        for name, (shape, dtype) in self.fields().items():
            size = torch.Size(shape).numel() * dtype.itemsize
            field = memory[..., offsets[name] : offsets[name] + size].view(dtype)
            views[name] = field.view(*memory.shape[:-1], *shape)
        return Pool(self, **views)

    def empty(self, pages: int, device: torch.device | str = "cpu") -> Pool:
        """A pool of fresh pages. They need no clearing: rows not yet written are never read."""
        return self.carve(torch.empty(pages, self.shape.kv_heads, self.nbytes, dtype=torch.uint8, device=device))


@dataclass(frozen=True)
class Pool:
    """One layer's pages, [pages, H, *field shape] each."""

    layout: PageLayout
    k: Tensor
    v: Tensor
    g: Tensor | None = None
    f: Tensor | None = None
    w: Tensor | None = None
    beta: Tensor | None = None
