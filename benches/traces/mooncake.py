"""The Mooncake traces: loaded, replayed through a pool, and the hits that the replay must give."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Literal, NamedTuple

from looseleaf import BlockKeys, BlockPool

Trace = Literal["conversation", "synthetic"]

BLOCK_SIZE = 512

_FOLDER = Path(__file__).parent
_PUBLISHED = json.loads((_FOLDER / "mooncake_lru_hits.json").read_text())

LRU_HIT_TOKENS: dict[tuple[Trace, int], int] = {
    (trace, int(num_usable)): hit_tokens
    for trace, by_capacity in _PUBLISHED.items()
    for num_usable, hit_tokens in by_capacity.items()
}
"""Hit tokens of the second half of each trace, by trace and usable blocks."""


class Prompt(NamedTuple):
    """One request: a key per block of its prompt, also packed, and how many tokens the prompt has."""

    keys: list[bytes]
    packed_keys: BlockKeys
    num_tokens: int

    def hit_tokens(self, num_hits: int) -> int:
        """Tokens in the first ``num_hits`` blocks; only the last block of a prompt may be part full."""
        return min(num_hits * BLOCK_SIZE, self.num_tokens)


@functools.cache
def load(trace: Trace) -> list[Prompt]:
    """The prompts of a trace, in the order of their arrival."""
    with gzip.open(_FOLDER / f"mooncake_{trace}_trace.jsonl.gz", "rt") as lines:
        requests = [json.loads(line) for line in lines]
    prompts = []
    for request in requests:
        keys = [number.to_bytes(32, "big") for number in request["hash_ids"]]
        prompts.append(Prompt(keys, BlockKeys(keys), request["input_length"]))
    return prompts


def replay(pool: BlockPool, prompts: list[Prompt]) -> list[int]:
    """Pass prompts through a pool one after the other, each finished before the next begins.

    Every block of a prompt is cached, the part-full last one too, as the published figures count it.

    Returns:
        The hit tokens of each prompt.
    """
    hit_tokens = []
    for prompt in prompts:
        keys = prompt.packed_keys
        blocks, num_hits = pool.admit_table(keys, len(keys))
        pool.publish_prefix(blocks, keys, num_hits)
        # Tail first, as a server does: prefixes outlive what follows them.
        blocks.release()
        hit_tokens.append(prompt.hit_tokens(num_hits))
    return hit_tokens


def replayed_hit_tokens(trace: Trace, num_usable: int) -> int:
    """The figure to hold against ``LRU_HIT_TOKENS``, from a pool of so many usable blocks."""
    return measured(replay(BlockPool(num_usable + 1), load(trace)))


def measured(hit_tokens: list[int]) -> int:
    """What the published figures count: the hits of the second half, once the first has filled the cache."""
    return sum(hit_tokens[len(hit_tokens) // 2 :])
