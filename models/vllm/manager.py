"""The cache spec of our pages, and the block manager that keeps a step from sharing what it is only computing.

vLLM publishes a block to its prefix cache when the step that fills it is scheduled, so that a second request may start
on it within the same step. For plain keys and values that is right: all are written before any is read. A page is
folded while it fills, and requests of a step are worked off together, so such a request waits for the next step. vLLM
does the same for Mamba states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request


@dataclass(frozen=True, kw_only=True)
class PageSpec(FullAttentionSpec):
    """Blocks that are pages. A class of its own only so that `PageManager` takes care of them."""


class PageManager(FullAttentionManager):
    """Full attention's, less prefix-cache hits on blocks of the step at hand."""

    def __init__(self, kv_cache_spec: PageSpec, block_pool: BlockPool, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, block_pool, **kwargs)
        self._published: set[BlockHashWithGroupId] = set()  # in this step

    def new_step_starts(self) -> None:
        super().new_step_starts()
        self._published.clear()

    def cache_blocks(self, request: Request, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        before = self.num_cached_block.get(request.request_id, 0)
        super().cache_blocks(request, num_tokens, *args, **kwargs)
        after = self.num_cached_block.get(request.request_id, 0)
        blocks = self.req_to_blocks[request.request_id][before:after]
        self._published.update(block.block_hash for block in blocks if block.block_hash is not None)

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock], *args: Any, **kwargs: Any
    ) -> int:
        if any(block.block_hash in self._published for block in new_computed_blocks):
            return int(self.block_pool.num_gpu_blocks) + 1  # more than there are: the request waits
        return int(super().get_num_blocks_to_allocate(request_id, num_tokens, new_computed_blocks, *args, **kwargs))


# The registry takes "not empty" for "built-ins are there": they must come first. Importing this module is what every
# process does that meets a PageSpec, unpickling included.
KVCacheSpecRegistry._ensure_registered()
KVCacheSpecRegistry.register(PageSpec, PageManager, uniform_type_base_spec=FullAttentionSpec)
