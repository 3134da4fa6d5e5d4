"""How much work do preemptions undo, by policy and watermark, and what would swapping move instead?

The engine's own scheduler and manager run requests that are all queued at once, on a pool that is full for
half of the time: 3,000 made-up ones, and the first of two recorded traces, whose prompts share prefixes. A
model that does nothing stands in for the real one, and a step is a step, however long it would take. With
swap, every victim's blocks are copied to a host pool of the same size as the pool, and copies take no time.
The first row of each policy is the dumb baseline: admitting whatever fits at the moment, and computing again.

Counts, not times: they are the same on every machine. The goal is to compute less again than the baseline.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from comparison.report import machine

import looseleaf
from looseleaf import BlockPool, GroupSpec, KVCacheManager, LayerSpec, SamplingParams
from looseleaf.engine import block_budget
from looseleaf.engine.config import SCHEDULING_POLICIES, EngineConfig, StepLimits
from looseleaf.engine.request import Request
from looseleaf.engine.scheduler import Scheduler
from looseleaf.engine.stats import EngineStats
from looseleaf.engine.swap_cost import SwapCost
from looseleaf.engine.swapping import Swapping
from looseleaf.tiers.base import BlockKey, CopyEnd, Tier

TRACES = Path(__file__).parent / "traces"
WATERMARKS = (0.0, 0.005, 0.01, 0.05)
# 60 GiB at 128 KiB a token, as for an 8B model with grouped heads in bfloat16.
NUM_USABLE = 30_720
BLOCK_SIZE = 16
BYTES_PER_BLOCK = BLOCK_SIZE * 128 * 1024
OPTIONS: dict[str, Any] = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}

Lengths = tuple[Sequence[int], int]
"""The tokens of a prompt, and how many are to be written."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, and the pool that is to serve them."""

    name: str
    requests: list[Lengths]
    num_usable: int
    max_model_len: int
    watermarks: tuple[float, ...] = WATERMARKS


class CountingTier(Tier):
    """A host pool of blocks without content: copies end at once."""

    name = "counting"

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._keys: set[BlockKey] = set()
        self._ended: list[CopyEnd] = []

    @property
    def is_empty(self) -> bool:
        return not self._keys

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int | None:
        if len(self._keys) + len(keys) > self._num_blocks:
            return None
        self._keys.update(keys)
        return self._end(succeeded=True)

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        return self._end(succeeded=self._keys.issuperset(keys))

    def poll(self, wait_seconds: float = 0.0) -> list[CopyEnd]:
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, job: int) -> None:
        """Nothing: all copies have ended."""

    def lookup(self, keys: Sequence[BlockKey]) -> int:
        return next((at for at, key in enumerate(keys) if key not in self._keys), len(keys))

    def drop(self, keys: Sequence[BlockKey]) -> None:
        self._keys.difference_update(keys)

    def _end(self, *, succeeded: bool) -> int:
        self._ended.append(CopyEnd(len(self._ended), succeeded, 0.0))
        return len(self._ended) - 1


class AlwaysCopy(SwapCost):
    """Copies whatever it costs, so that the counts do not depend on the machine."""

    def prefers_copy(self, num_bytes: float, num_tokens: float) -> bool:
        return True


@dataclass(slots=True)
class Counts:
    """What a run took.

    Attributes:
        steps: engine steps.
        preemptions: times that a request lost its blocks.
        readmitted: tokens that preempted requests had computed when they got a row again.
        recomputed: those of them that were computed again: neither cached nor copied back.
        engine: what the swapping counts.
    """

    steps: int = 0
    preemptions: int = 0
    readmitted: int = 0
    recomputed: int = 0
    engine: EngineStats = field(default_factory=EngineStats)

    @property
    def swapped_gib(self) -> float:
        """Copied out and in."""
        return (self.engine.num_bytes_swapped_out + self.engine.num_bytes_swapped_in) / 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when a row is not below the baseline"
    )
    args = parser.parse_args()
    logging.getLogger("looseleaf").setLevel(logging.ERROR)  # that preemptions are frequent is known here
    runs = {workload.name: measure(workload) for workload in workloads()}
    report = as_report(runs)
    print(json.dumps(report) if args.json else "\n\n".join(as_table(*run) for run in runs.items()))
    return int(args.check and not all(row["met"] for row in report["rows"]))


def workloads() -> list[Workload]:
    """Each with a pool that is too small for what would like to run side by side."""
    with (TRACES / "simulate_default_3000.csv").open(newline="") as lines:
        lengths = [(int(row["prompt_tokens"]), int(row["reply_tokens"])) for row in csv.DictReader(lines)]
    # The first token makes each prompt unlike all others.
    made_up: list[Lengths] = [([n] + [0] * (prompt - 1), reply) for n, (prompt, reply) in enumerate(lengths)]
    some = (0.0, 0.01, 0.05)
    return [
        Workload("3,000 made-up requests", made_up, NUM_USABLE, 8192),
        Workload("400 of the conversation trace", recorded("conversation", 400), NUM_USABLE, 2**17, some),
        Workload("400 of the synthetic trace", recorded("synthetic", 400), NUM_USABLE, 2**18, some),
    ]


def recorded(trace: str, count: int) -> list[Lengths]:
    """The first requests of a trace, with a token for each recorded block of 512."""
    with gzip.open(TRACES / f"mooncake_{trace}_trace.jsonl.gz", "rt") as lines:
        requests = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [
        (
            [block for block in request["hash_ids"] for _ in range(512)][: request["input_length"]],
            max(1, request["output_length"]),
        )
        for request in requests
    ]


def measure(workload: Workload) -> dict[str, Counts]:
    """All runs by name, for each policy the baseline first."""
    runs = {}
    for policy in SCHEDULING_POLICIES:
        runs[baseline(policy)] = run_without_look_ahead(workload, policy)
        for watermark in workload.watermarks:
            for swap in (False, True):
                name = f"{policy}, watermark {watermark:g}, {'swap' if swap else 'recompute'}"
                runs[name] = run(workload, policy, watermark, swap=swap)
    return runs


def baseline(policy: str) -> str:
    """The name of the run that others of this policy are compared with."""
    return f"{policy}, no look-ahead"


def run_without_look_ahead(workload: Workload, policy: str) -> Counts:
    """The baseline."""
    steps, block_budget.GROWTH_STEPS = block_budget.GROWTH_STEPS, 0
    try:
        return run(workload, policy, 0.0, swap=False)
    finally:
        block_budget.GROWTH_STEPS = steps


def run(workload: Workload, policy: str, watermark: float, *, swap: bool) -> Counts:
    """Queue all requests and step until they have ended; under ``priority`` every third one is urgent."""
    config = EngineConfig(
        model="none",
        max_model_len=workload.max_model_len,
        scheduling_policy=policy,  # type: ignore[arg-type]
        watermark=watermark,
        **OPTIONS,
    )
    limits = config.limits(workload.max_model_len)
    pool = BlockPool(workload.num_usable + 1)
    manager = make_manager(pool, limits)
    counts = Counts()
    tier = CountingTier(workload.num_usable) if swap else None
    swapping = Swapping(manager, pool, tier, bytes_per_block=BYTES_PER_BLOCK, stats=counts.engine)
    swapping.cost = AlwaysCopy()
    scheduler = Scheduler(manager, pool, limits, swapping)
    requests = {}
    for number, (prompt, reply) in enumerate(workload.requests):
        handle = manager.open(prompt, max_tokens=reply)
        params = SamplingParams(max_tokens=reply)
        priority = int(number % 3 != 0)
        requests[handle] = request = Request(
            str(number), handle, None, params, 0, None, priority=priority, max_tokens=reply
        )
        scheduler.add(request)
    while requests:
        step(scheduler, manager, requests, counts)
    return counts


def step(scheduler: Scheduler, manager: KVCacheManager, requests: dict[int, Request], counts: Counts) -> None:
    """One step, in which every row writes the same token."""
    schedule = scheduler.schedule()
    counts.steps += 1
    counts.preemptions += len(schedule.preempted)
    counts.recomputed += schedule.num_recomputed_tokens
    counts.readmitted += sum(request.num_lost_tokens for request in schedule.admitted)
    prepared = manager.prepare()
    for row in manager.commit_step(prepared.step, [0] * prepared.num_samples):
        scheduler.remove(requests.pop(row.handle))
        manager.close(row.handle)


def make_manager(pool: BlockPool, limits: StepLimits) -> KVCacheManager:
    """A manager with arrays to write its steps to, which nobody reads."""
    manager = KVCacheManager(
        pool,
        [GroupSpec([LayerSpec(kv_heads=8, head_size_k=128)] * 32, BLOCK_SIZE)],
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        hash_algo="xxh3",
    )
    rows, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    manager.bind(
        token_ids=np.zeros(tokens, np.int64),
        positions=np.zeros(tokens, np.int64),
        slot_mapping=[np.zeros(tokens, np.int64)],
        block_tables=[np.zeros((rows, manager.max_blocks_per_seq), np.int32)],
        seq_lens=np.zeros(rows, np.int32),
        cu_seqlens_q=np.zeros(rows + 1, np.int32),
        logits_indices=np.zeros(rows, np.int64),
        sample_rows=np.zeros(rows, np.int32),
        copies=np.zeros((rows, 2), np.int32),
    )
    return manager


def as_report(runs: dict[str, dict[str, Counts]]) -> dict[str, Any]:
    """The object that ``--json`` prints; what is compared are tokens computed again."""
    rows = []
    for workload, by_name in runs.items():
        for name, counts in by_name.items():
            peer_name = baseline(name.split(",")[0])
            if name == peer_name:
                continue
            peer = by_name[peer_name].recomputed
            rows.append(
                {
                    "name": f"{workload}: {name}",
                    "unit": "tokens computed again",
                    "ours": counts.recomputed,
                    "peer_name": peer_name,
                    "peer": peer,
                    "ratio": peer / max(1, counts.recomputed),
                    "goal": 1.0,
                    "met": counts.recomputed < peer,
                    "steps": counts.steps,
                    "preemptions": counts.preemptions,
                    "readmitted": counts.readmitted,
                    "bytes_swapped_out": counts.engine.num_bytes_swapped_out,
                    "bytes_swapped_in": counts.engine.num_bytes_swapped_in,
                }
            )
    versions = {"looseleaf": looseleaf.__version__, "numpy": np.__version__}
    return {"machine": machine(), "versions": versions, "rows": rows}


def as_table(workload: str, runs: dict[str, Counts]) -> str:
    """The lines that a terminal shows."""
    width = max(map(len, runs))
    heads = f"{'steps':>6} {'preemptions':>11} {'readmitted':>10} {'recomputed':>10} {'GiB swapped':>11}"
    lines = [workload, f"{'':<{width}} {heads}"]
    for name, counts in runs.items():
        lines.append(
            f"{name:<{width}} {counts.steps:>6,} {counts.preemptions:>11,} {counts.readmitted:>10,}"
            f" {counts.recomputed:>10,} {counts.swapped_gib:>11.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
