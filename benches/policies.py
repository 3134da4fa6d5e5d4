"""How much work do preemptions undo, by scheduling policy and watermark?

The engine's own scheduler and manager run 3,000 requests that are queued at once, on a pool that is full for
half of the time; a model that does nothing stands in for the real one. The first row is the dumb baseline:
first come first served, admitting whatever fits at the moment.

Counts, not times: they are the same on every machine. The goal is to be better than the baseline.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
from dataclasses import dataclass
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

TRACE = Path(__file__).parent / "traces" / "simulate_default_3000.csv"
WATERMARKS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)
# 60 GiB at 128 KiB a token, as for an 8B model with grouped heads in bfloat16.
NUM_USABLE = 30_720
BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
OPTIONS: dict[str, Any] = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
BASELINE = "fcfs, no look-ahead"


@dataclass(slots=True)
class Counts:
    """What a run took.

    Attributes:
        steps: engine steps.
        preemptions: times that a request lost its blocks.
        readmitted: tokens that preempted requests had computed when they got a row again.
        recomputed: those of them that were not found in the prefix cache.
    """

    steps: int = 0
    preemptions: int = 0
    readmitted: int = 0
    recomputed: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when a row is not below the baseline"
    )
    args = parser.parse_args()
    logging.getLogger("looseleaf").setLevel(logging.ERROR)  # that preemptions are frequent is known here
    runs = measure()
    report = as_report(runs)
    print(json.dumps(report) if args.json else as_table(runs))
    return int(args.check and not all(row["met"] for row in report["rows"]))


def measure() -> dict[str, Counts]:
    """All runs by name, the baseline first."""
    with TRACE.open(newline="") as lines:
        lengths = [(int(row["prompt_tokens"]), int(row["reply_tokens"])) for row in csv.DictReader(lines)]
    runs = {BASELINE: run_without_look_ahead(lengths)}
    for policy in SCHEDULING_POLICIES:
        for watermark in WATERMARKS:
            runs[f"{policy}, watermark {watermark:g}"] = run(lengths, policy, watermark)
    return runs


def run_without_look_ahead(lengths: list[tuple[int, int]]) -> Counts:
    """The baseline."""
    steps, block_budget.GROWTH_STEPS = block_budget.GROWTH_STEPS, 0
    try:
        return run(lengths, "fcfs", 0.0)
    finally:
        block_budget.GROWTH_STEPS = steps


def run(lengths: list[tuple[int, int]], policy: str, watermark: float) -> Counts:
    """Queue all requests and step until they have ended; under ``priority`` every third one is urgent."""
    config = EngineConfig(
        model="none",
        max_model_len=MAX_MODEL_LEN,
        scheduling_policy=policy,  # type: ignore[arg-type]
        watermark=watermark,
        **OPTIONS,
    )
    limits = config.limits(MAX_MODEL_LEN)
    pool = BlockPool(NUM_USABLE + 1)
    manager = make_manager(pool, limits)
    scheduler = Scheduler(manager, pool, limits)
    requests = {}
    for number, (prompt, reply) in enumerate(lengths):
        # The first token makes each prompt unlike all others.
        handle = manager.open([number] + [0] * (prompt - 1), max_tokens=reply)
        params = SamplingParams(max_tokens=reply)
        priority = int(number % 3 != 0)
        requests[handle] = request = Request(
            str(number), handle, None, params, 0, None, priority=priority, max_tokens=reply
        )
        scheduler.add(request)
    counts = Counts()
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


def as_report(runs: dict[str, Counts]) -> dict[str, Any]:
    """The object that ``--json`` prints; what is compared are tokens computed again."""
    peer = runs[BASELINE].recomputed
    rows = [
        {
            "name": name,
            "unit": "tokens computed again",
            "ours": counts.recomputed,
            "peer_name": BASELINE,
            "peer": peer,
            "ratio": peer / max(1, counts.recomputed),
            "goal": 1.0,
            "met": counts.recomputed < peer,
            "steps": counts.steps,
            "preemptions": counts.preemptions,
            "readmitted": counts.readmitted,
        }
        for name, counts in runs.items()
        if name != BASELINE
    ]
    versions = {"looseleaf": looseleaf.__version__, "numpy": np.__version__}
    return {"machine": machine(), "versions": versions, "rows": rows}


def as_table(runs: dict[str, Counts]) -> str:
    """The lines that a terminal shows."""
    width = max(map(len, runs))
    lines = [f"{'':<{width}} {'steps':>6} {'preemptions':>11} {'readmitted':>10} {'recomputed':>10}"]
    for name, counts in runs.items():
        lines.append(
            f"{name:<{width}} {counts.steps:>6,} {counts.preemptions:>11,} {counts.readmitted:>10,}"
            f" {counts.recomputed:>10,}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
