"""What the comparison with vLLM measures, row by row. Importing this needs vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from comparison.alternation import Comparison

from vllm_rows import hashing, pool, sequences, steps, trace


@dataclass(frozen=True, slots=True)
class RowSpec:
    """How a row is measured and shown.

    Attributes:
        goal: how many times as fast as vLLM we mean to be.
        compare: readies both sides and checks that they give the same results.
        unit: what the table shows, and
        per_second: how many of it make a second.
    """

    goal: float
    compare: Callable[[], Comparison]
    unit: str = "µs"
    per_second: float = 1e6


ROWS = {
    "alloc_release_57": RowSpec(15, pool.alloc_release),
    "alloc_release_57_list": RowSpec(8, pool.alloc_release_list),
    "hash_8192_sha256_cbor": RowSpec(15, hashing.hash_buffer),
    "hash_8192_sha256_cbor_list": RowSpec(10, hashing.hash_list),
    "prefix_cycle_8192": RowSpec(20, sequences.prefix_cycle),
    "request_cycle_8192": RowSpec(15, sequences.request_cycle),
    "append_1": RowSpec(10, sequences.append),
    "trace_conversation_10000": RowSpec(10, trace.conversation, "ms", 1e3),
    "step_64": RowSpec(10, partial(steps.decode, 64)),
    "step_256": RowSpec(10, partial(steps.decode, 256)),
    "step_512": RowSpec(20, partial(steps.decode, 512)),
}
