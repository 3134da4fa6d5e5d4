"""How long does it take to copy a request's blocks out and in again, beside computing them, by block size?

Copies are those of ``HostTier``, between two arenas of real memory with the blocks of SmolLM2-135M in
float32, scattered over the pool as they are after a while. Computing is a prompt of as many tokens through
the whole engine, in steps of 512. It is measured once, at a block size of 16: attention on the CPU takes
block sizes from 8 on, and what it costs hardly depends on them. Both are medians. Of a request that gives way
amid a block that one is copied whole; the last column is what that wastes on average.

A copy stops the engine while it lasts, as a step does. Nothing else of a step is modelled.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import time
from typing import Any

import torch
from comparison.report import machine

import looseleaf
from looseleaf import LLM, SamplingParams
from looseleaf.tiers.host import HostTier

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_TOKENS = 1024
# The pool is four times as large as what is copied, so that caches of the processor do not hold it.
NUM_POOL_TOKENS = 4 * NUM_TOKENS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when a copy takes longer than computing"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="samples of each figure (default: %(default)s)"
    )
    args = parser.parse_args()
    logging.getLogger("looseleaf").setLevel(logging.ERROR)
    report = measure(args.repeats)
    print(json.dumps(report) if args.json else table(report))
    return int(args.check and not all(row["met"] for row in report["rows"]))


def measure(repeats: int) -> dict[str, Any]:
    """All rows, for one speed of computing."""
    llm = LLM(
        "smollm2",
        max_model_len=NUM_TOKENS + 1,
        kv_cache_memory_bytes=2**28,
        max_num_batched_tokens=512,
        enable_prefix_caching=False,
        dtype="float32",
    )
    group = llm.llm_engine.group
    bytes_per_token = group.bytes_per_block // group.block_size
    compute_ms = 1e3 * statistics.median(compute(llm) for _ in range(repeats))
    rows = []
    for block_size in BLOCK_SIZES:
        block_bytes = block_size * bytes_per_token
        out_ms, in_ms = copies(block_size, bytes_per_token, repeats)
        copy_ms = out_ms + in_ms
        rows.append(
            {
                "name": f"block size {block_size}",
                "unit": f"ms for {NUM_TOKENS} tokens",
                "ours": copy_ms,
                "peer_name": "computing again",
                "peer": compute_ms,
                "ratio": compute_ms / copy_ms,
                "goal": 1.0,
                "met": copy_ms < compute_ms,
                "block_bytes": block_bytes,
                "out_ms": out_ms,
                "in_ms": in_ms,
                "gib_per_second": 2 * NUM_TOKENS * bytes_per_token / 2**30 / (copy_ms / 1e3),
                "wasted_ms": copy_ms / NUM_TOKENS * (block_size - 1) / 2,
            }
        )
    versions = {"looseleaf": looseleaf.__version__, "torch": torch.__version__}
    return {"machine": machine(), "versions": versions, "rows": rows}


def compute(llm: LLM) -> float:
    """Seconds for a prompt that nobody has seen, and one token."""
    prompt = [random.randrange(1000, 40000) for _ in range(NUM_TOKENS)]
    began = time.perf_counter()
    llm.generate({"prompt_token_ids": prompt}, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    return time.perf_counter() - began


def copies(block_size: int, bytes_per_token: int, repeats: int) -> tuple[float, float]:
    """Milliseconds to copy the blocks out, and to copy them in."""
    cache = torch.rand(NUM_POOL_TOKENS // block_size, block_size * bytes_per_token // 4)
    count = NUM_TOKENS // block_size
    tier = HostTier(cache, NUM_POOL_TOKENS // block_size)
    # The first copy to a slot maps its memory; a server does that once.
    everything = [(0, block) for block in range(len(cache))]
    tier.store(everything, range(len(cache)))
    tier.drop(everything)
    tier.poll()
    seconds = []
    for _ in range(repeats):
        keys = [(1, index) for index in range(count)]
        tier.store(keys, random.sample(range(len(cache)), count))
        tier.load(keys, random.sample(range(len(cache)), count))
        tier.drop(keys)
        seconds.append([end.seconds for end in tier.poll()])
    out, back = (1e3 * statistics.median(column) for column in zip(*seconds, strict=True))
    return out, back


def table(report: dict[str, Any]) -> str:
    """The lines that a terminal shows."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    heads = f"{'block':>5} {'KiB':>7} {'out ms':>8} {'in ms':>8} {'GiB/s':>6} {'compute ms':>10} {'times':>6}"
    lines = [report["machine"], versions, "", f"{heads} {'wasted ms':>9}"]
    for row in report["rows"]:
        lines.append(
            f"{row['name'].split()[-1]:>5} {row['block_bytes'] / 1024:>7,.0f} {row['out_ms']:>8.2f}"
            f" {row['in_ms']:>8.2f} {row['gib_per_second']:>6.2f} {row['peer']:>10.0f} {row['ratio']:>6.0f}"
            f" {row['wasted_ms']:>9.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
