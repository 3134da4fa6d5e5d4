"""Rows about hashing a prompt's blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from comparison.alternation import Comparison
from peers.vllm_core import hash_seed, request_hasher
from vllm import SamplingParams
from vllm.v1.request import Request

from looseleaf import BlockHasher

BLOCK_SIZE = 16
NUM_TOKENS = 8192


def hash_buffer() -> Comparison:
    """The chained ``sha256_cbor`` hashes of a prompt of 8,192 tokens, 16 to a block.

    Ours reads an int32 array, as servers hold prompts. vLLM reads the Python list in its request, the only
    form it takes.
    """
    tokens = _tokens()
    return _compare(tokens, tokens.tolist())


def hash_list() -> Comparison:
    """The same, with the same Python list on both sides."""
    tokens = _tokens().tolist()
    return _compare(tokens, tokens)


def _tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 49_152, NUM_TOKENS, np.int32)


def _compare(our_tokens: np.ndarray | Sequence[int], peer_tokens: list[int]) -> Comparison:
    ours = BlockHasher(BLOCK_SIZE, hash_algo="sha256_cbor", hash_seed=hash_seed())
    peer = request_hasher(BLOCK_SIZE)
    # Without a hasher of its own the request stays without hashes, and each call starts at the first block.
    request = Request("prompt", peer_tokens, SamplingParams(max_tokens=1), pooling_params=None)

    def ours_side(n: int) -> Callable[[], None]:
        def perform() -> None:
            for _ in range(n):
                ours.hash_blocks(our_tokens)

        return perform

    def peer_side(n: int) -> Callable[[], None]:
        def perform() -> None:
            for _ in range(n):
                peer(request)

        return perform

    keys = ours.hash_blocks(our_tokens)
    equal = [keys[index] for index in range(len(keys))] == peer(request)
    return Comparison(ours_side, peer_side, () if equal else ("the hashes differ",))
