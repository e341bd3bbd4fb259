"""What one block of vLLM's KV cache holds: a page of the kernels, and the inputs of w's short convolution.

A block is one page of P tokens; per kv head its bytes are `kernels.pool.PageLayout`'s fields followed by

    tail  [2, d]  model dtype   the convolution's inputs at the last two tokens seen in this page, token t in row t % 2

A full page never changes and depends on nothing after it, so prefix caching holds. The tail is kept by page, not by
request: a request that starts on a cached prefix reads the two inputs before it from the prefix's last page.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from longeval.kernels.pool import PageLayout, Pool

TAIL = 2  # the convolution is three tokens wide


@dataclass(frozen=True)
class Block:
    """The bytes of one kv head in a block. `conv`: whether w has its short convolution."""

    page: PageLayout
    conv: bool

    @property
    def bytes_per_token(self) -> int:
        """vLLM's cache cell of one token and kv head; P of them hold everything, rounded up by less than P bytes."""
        shape = self.page.shape
        tail = TAIL * shape.head_dim * shape.dtype.itemsize if self.conv else 0
        return -(-(self.page.nbytes + tail) // self.page.size)

    def views(self, cache: Tensor) -> tuple[Pool, Tensor | None]:
        """`cache` uint8 [blocks, H, P, bytes_per_token], contiguous in its last two, as a pool and the tails.

        tail [blocks, H, 2, d]; None without the convolution.
        """
        memory, shape, end = cache.view(*cache.shape[:2], -1), self.page.shape, self.page.nbytes  # never a copy
        if not self.conv:
            return self.page.carve(memory), None
        tail = memory[..., end : end + TAIL * shape.head_dim * shape.dtype.itemsize]
        return self.page.carve(memory), tail.view(shape.dtype).unflatten(-1, (TAIL, shape.head_dim))
