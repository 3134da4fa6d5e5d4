"""Rows about whole sequences: admitted onto a cached prefix, grown by a token, freed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from comparison.alternation import Comparison
from peers.vllm_core import VllmSequences, hash_seed
from vllm.v1.request import Request

from looseleaf import BlockPool, GroupSpec, KVCacheManager, LayerSpec

BLOCK_SIZE = 16
NUM_BLOCKS = 30_720
MAX_MODEL_LEN = 16_384
VOCABULARY = 49_152

PROMPT_TOKENS = 8192
SHARED_TOKENS = PROMPT_TOKENS * 9 // 10 // BLOCK_SIZE * BLOCK_SIZE
# More than the pool keeps the tails of, so that a prompt's tail is evicted before the prompt comes again.
NUM_PROMPTS = 640

# Requests that either side has at a time, as a busy server does.
WAITING_REQUESTS = 256

SHORT_PROMPT_TOKENS = 512
APPENDED_TOKENS = 8192

SAMPLED = np.array([7], np.int32)


def prefix_cycle() -> Comparison:
    """A prompt of 8,192 tokens, 7,360 of them cached: look-up, blocks for the rest, and all of them freed.

    The requests exist and are hashed. Both sides also publish the 52 blocks that the prompt fills, and evict
    as many older ones. Ours does a little more: it schedules the tokens and takes the first sampled one.
    """
    ours, peer = _our_manager(), _peer_sequences()
    our_prompts, peer_prompts, disagreements = _prompts_in_steady_state(ours, peer)

    def ours_side(n: int) -> Callable[[], None]:
        handles = [ours.open(tokens) for tokens in itertools.islice(our_prompts, n)]

        def perform() -> None:
            for handle in handles:
                _our_cycle(ours, handle)

        return perform

    def peer_side(n: int) -> Callable[[], None]:
        requests = [peer.open(tokens) for tokens in itertools.islice(peer_prompts, n)]

        def perform() -> None:
            for request in requests:
                _peer_cycle(peer, request)

        return perform

    return Comparison(ours_side, peer_side, disagreements, WAITING_REQUESTS)


def request_cycle() -> Comparison:
    """The same with the request made and hashed each time, by ``sha256_cbor`` on both sides.

    Ours reads the prompt from an int32 array, vLLM from a Python list, the only form it takes.
    """
    ours, peer = _our_manager(), _peer_sequences()
    our_prompts, peer_prompts, disagreements = _prompts_in_steady_state(ours, peer)

    def ours_side(n: int) -> Callable[[], None]:
        prompts = list(itertools.islice(our_prompts, n))

        def perform() -> None:
            for tokens in prompts:
                _our_cycle(ours, ours.open(tokens))

        return perform

    def peer_side(n: int) -> Callable[[], None]:
        prompts = list(itertools.islice(peer_prompts, n))

        def perform() -> None:
            for tokens in prompts:
                _peer_cycle(peer, peer.open(tokens))

        return perform

    return Comparison(ours_side, peer_side, disagreements, WAITING_REQUESTS)


def append() -> Comparison:
    """One more token for one sequence: its slot, and each block that fills up hashed and published.

    A sequence starts from a prompt of its own of 512 tokens, grows by 8,192, and is freed then.
    """
    ours, peer = _our_manager(), _peer_sequences()
    manager, sampled = peer.manager, int(SAMPLED[0])

    def ours_side(n: int) -> Callable[[], None]:
        runs = [(_admitted(ours, tokens), count) for tokens, count in _short_prompts(n)]

        def perform() -> None:
            for handle, count in runs:
                for _ in range(count):
                    ours.append(handle, 1)
                    ours.commit(handle, sampled)
                ours.close(handle)

        return perform

    def peer_side(n: int) -> Callable[[], None]:
        runs = [(peer.open(tokens.tolist()), count) for tokens, count in _short_prompts(n)]
        for request, _ in runs:
            peer.admit(request)

        def perform() -> None:
            for request, count in runs:
                for _ in range(count):
                    request.append_output_token_ids(sampled)
                    manager.allocate_slots(request, 1)
                    request.num_computed_tokens += 1
                manager.free(request)

        return perform

    ours_side(APPENDED_TOKENS)()
    peer_side(APPENDED_TOKENS)()
    equal = ours.pool.free_order() == peer.free_order()
    return Comparison(ours_side, peer_side, () if equal else ("the free blocks differ in order",))


def _our_manager() -> KVCacheManager:
    return KVCacheManager(
        BlockPool(NUM_BLOCKS),
        [GroupSpec([LayerSpec(kv_heads=1, head_size_k=64)], BLOCK_SIZE)],
        max_num_seqs=1024,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        hash_algo="sha256_cbor",
        hash_seed=hash_seed(),
    )


def _peer_sequences() -> VllmSequences:
    return VllmSequences(NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN)


def _our_cycle(manager: KVCacheManager, handle: int) -> int:
    num_cached = manager.admit(handle)
    manager.append(handle, PROMPT_TOKENS - num_cached)
    manager.commit(handle, SAMPLED)
    manager.close(handle)
    return num_cached


def _peer_cycle(peer: VllmSequences, request: Request) -> int:
    manager = peer.manager
    blocks, num_cached, _ = manager.get_computed_blocks(request)
    manager.allocate_slots(request, PROMPT_TOKENS - num_cached, num_cached, blocks)
    request.num_computed_tokens = PROMPT_TOKENS
    manager.free(request)
    return num_cached


def _prompts_in_steady_state(
    ours: KVCacheManager, peer: VllmSequences
) -> tuple[Iterator[np.ndarray], Iterator[list[int]], tuple[str, ...]]:
    """Endless prompts for each side, the same ones, after a first round that has filled both pools."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (NUM_PROMPTS, PROMPT_TOKENS), np.int32)
    tokens[:, :SHARED_TOKENS] = tokens[0, :SHARED_TOKENS]
    arrays, lists = list(tokens), tokens.tolist()
    our_hits = [_our_cycle(ours, ours.open(prompt)) for prompt in arrays]
    peer_hits = [_peer_cycle(peer, peer.open(prompt)) for prompt in lists]
    disagreements = []
    if our_hits != peer_hits or our_hits[-1] != SHARED_TOKENS:
        disagreements.append(f"{our_hits[-1]} tokens cached, {peer_hits[-1]} in vLLM, of {SHARED_TOKENS}")
    if ours.pool.free_order() != peer.free_order():
        disagreements.append("the free blocks differ in order")
    return itertools.cycle(arrays), itertools.cycle(lists), tuple(disagreements)


def _short_prompts(num_tokens: int) -> Iterator[tuple[np.ndarray, int]]:
    """Prompts, no two alike, and how much each is to grow, so that they grow by ``num_tokens`` in all."""
    rng = np.random.default_rng(num_tokens)
    for done in range(0, num_tokens, APPENDED_TOKENS):
        prompt = rng.integers(0, VOCABULARY, SHORT_PROMPT_TOKENS, np.int32)
        yield prompt, min(APPENDED_TOKENS, num_tokens - done)


def _admitted(manager: KVCacheManager, tokens: np.ndarray) -> int:
    handle = manager.open(tokens)
    manager.admit(handle)
    manager.append(handle, len(tokens))
    manager.commit(handle, SAMPLED)
    return handle
