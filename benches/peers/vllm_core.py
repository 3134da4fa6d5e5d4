"""vLLM's own block pool, block hasher, KV-cache manager and requests, set up as its engine sets them up."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from vllm import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request


class VllmSequences:
    """A manager over a pool of its own, prefix caching on, and the requests that it serves.

    Args:
        num_blocks: blocks of the pool, vLLM's null block included.
        block_size: tokens per block.
        max_model_len: most tokens of a request.
    """

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = KVCacheManager(
            config,
            max_model_len=max_model_len,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=True,
        )
        self._hasher = request_hasher(block_size)
        self._params = SamplingParams(max_tokens=max_model_len, temperature=0.0, ignore_eos=True)
        self._opened = 0

    def open(self, token_ids: list[int], cache_salt: str | None = None) -> Request:
        """A new request; vLLM hashes its full blocks here."""
        self._opened += 1
        return Request(
            str(self._opened),
            token_ids,
            self._params,
            pooling_params=None,
            block_hasher=self._hasher,
            cache_salt=cache_salt,
        )

    def admit(self, request: Request) -> int | None:
        """Look for the request's prefix and compute the rest of its tokens.

        Returns:
            How many tokens were cached; None if blocks are lacking, and nothing has changed then.
        """
        blocks, num_cached, _ = self.manager.get_computed_blocks(request)
        new_tokens = request.num_tokens - num_cached
        if self.manager.allocate_slots(request, new_tokens, num_cached, blocks) is None:
            return None
        request.num_computed_tokens = request.num_tokens
        return num_cached

    def decode(self, request: Request) -> bool:
        """Compute the last token of a running request; False if blocks are lacking."""
        if self.manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        return True

    def preempt(self, request: Request) -> None:
        """Take the request's blocks away, tail first; it keeps its tokens and can be admitted again."""
        self.manager.free(request)
        request.num_computed_tokens = 0

    def free_order(self) -> list[int]:
        """Ids of the free blocks, next one first."""
        return [block.block_id for block in self.manager.block_pool.free_block_queue.get_all_free_blocks()]


def hash_seed() -> str | None:
    """The seed of vLLM's hash chains, which it takes from Python's own; None stands for its fixed one."""
    return os.environ.get("PYTHONHASHSEED")


def request_hasher(block_size: int) -> Callable[[Request], list[kv_cache_utils.BlockHash]]:
    """vLLM's hasher of requests with ``sha256_cbor``, its start value initialised."""
    hash_function = get_hash_fn_by_name("sha256_cbor")
    kv_cache_utils.init_none_hash(hash_function)
    return kv_cache_utils.get_request_block_hasher(block_size, hash_function)
