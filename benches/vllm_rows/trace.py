"""The row about a recorded trace: what a pool costs that is always full of cached blocks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from comparison.alternation import Comparison
from traces import mooncake
from vllm.v1.core.block_pool import BlockPool as VllmPool

from looseleaf import BlockPool

NUM_USABLE = 10_000


def conversation() -> Comparison:
    """The Mooncake conversation trace, keys ready, through a pool of 10,000 usable blocks.

    Each of the 12,031 prompts looks up its prefix and takes those blocks, takes new ones for the rest,
    publishes these, and frees everything tail first. Ours does so in three calls and keeps each prompt's keys
    packed; vLLM does so by the methods that its own manager calls.
    """
    prompts = mooncake.load("conversation")

    def ours_side(n: int) -> Callable[[], None]:
        pools = [BlockPool(NUM_USABLE + 1) for _ in range(n)]

        def perform() -> None:
            for pool in pools:
                mooncake.replay(pool, prompts)

        return perform

    # All that `cache_full_blocks` reads of a request.
    requests = [SimpleNamespace(block_hashes=prompt.keys) for prompt in prompts]

    def peer_side(n: int) -> Callable[[], None]:
        pools = [_peer_pool() for _ in range(n)]

        def perform() -> None:
            for pool in pools:
                _peer_replay(pool, prompts, requests)

        return perform

    disagreements = [
        f"{trace} trace, {num_usable} blocks: {found} hit tokens, published {expected}"
        for (trace, num_usable), expected in mooncake.LRU_HIT_TOKENS.items()
        if (found := mooncake.replayed_hit_tokens(trace, num_usable)) != expected
    ]
    theirs = mooncake.measured(_peer_replay(_peer_pool(), prompts, requests))
    if theirs != mooncake.LRU_HIT_TOKENS["conversation", NUM_USABLE]:
        disagreements.append(f"vLLM has {theirs} hit tokens with {NUM_USABLE} blocks")
    return Comparison(ours_side, peer_side, tuple(disagreements))


def _peer_pool() -> VllmPool:
    return VllmPool(NUM_USABLE + 1, enable_caching=True, hash_block_size=mooncake.BLOCK_SIZE)


def _peer_replay(
    pool: VllmPool, prompts: list[mooncake.Prompt], requests: list[SimpleNamespace]
) -> list[int]:
    hit_tokens = []
    for prompt, request in zip(prompts, requests, strict=True):
        hits = []
        for key in prompt.keys:
            found = pool.get_cached_block(key, [0])
            if found is None:
                break
            hits.append(found[0])
        pool.touch(hits)
        blocks = hits + pool.get_new_blocks(len(prompt.keys) - len(hits))
        pool.cache_full_blocks(request, blocks, len(hits), len(blocks), mooncake.BLOCK_SIZE, 0)
        pool.free_blocks(reversed(blocks))
        hit_tokens.append(prompt.hit_tokens(len(hits)))
    return hit_tokens
