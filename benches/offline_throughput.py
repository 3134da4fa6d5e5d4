"""How many tokens per second does ``LLM.generate`` write, beside ``generate()`` of transformers?

Both run SmolLM2-135M-Instruct in float32 on the same threads, greedily, to the same number of tokens, prompt
included in the time. They take turns and the figures are medians. Prefix caching is off, since the same
prompts come again each time. There is no goal yet: this says where we stand.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers
from comparison.alternation import Comparison, alternate
from comparison.report import machine
from transformers import AutoModelForCausalLM, AutoTokenizer

import looseleaf
from looseleaf import LLM, SamplingParams
from looseleaf.models.gguf_cache import converted_folder
from looseleaf.models.locate import locate_model

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "The three primary colours are",
    "A good breakfast begins with",
    "The first person on the moon was",
    "In the morning the birds",
    "To bake bread you need",
    "The longest river in Africa is",
]
NEW_TOKENS = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when a goal is missed; there is none"
    )
    parser.add_argument("--repeats", type=int, default=5, help="samples of each side (default: %(default)s)")
    args = parser.parse_args()
    report = {"machine": machine(), "versions": versions(), "rows": measure(args.repeats)}
    print(json.dumps(report) if args.json else table(report))
    return 0


def measure(repeats: int) -> list[dict[str, Any]]:
    folder = converted_folder(locate_model("smollm2").path, "float32")
    ours, peer = our_side(str(folder)), peer_side(str(folder))
    rows = []
    for count in (1, 8):
        prompts = PROMPTS[:count]
        seconds = alternate(Comparison(times(ours, prompts), times(peer, prompts)), repeats, sample_s=0)
        our_rate, peer_rate = (count * NEW_TOKENS / each for each in seconds)
        rows.append(
            {
                "name": f"{count} prompt{'s' * (count > 1)}, {NEW_TOKENS} new tokens each",
                "unit": "tokens/s",
                "ours": our_rate,
                "peer_name": "transformers",
                "peer": peer_rate,
                "ratio": our_rate / peer_rate,
                "goal": None,
                "met": None,
            }
        )
    return rows


def our_side(folder: str) -> Callable[[list[str]], int]:
    llm = LLM(folder, dtype="float32", max_model_len=1024, enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)

    def generate(prompts: list[str]) -> int:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate


def peer_side(folder: str) -> Callable[[list[str]], int]:
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lengths = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}

    def generate(prompts: list[str]) -> int:
        inputs = tokenizer(prompts, return_tensors="pt", padding=True)
        output = model.generate(**inputs, **lengths, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        return int(output[:, inputs["input_ids"].shape[1] :].numel())

    return generate


def times(generate: Callable[[list[str]], int], prompts: list[str]) -> Callable[[int], Callable[[], None]]:
    """One side of the comparison; a side that wrote fewer tokens than it should would seem fast."""

    def ready(repetitions: int) -> Callable[[], None]:
        def perform() -> None:
            for _ in range(repetitions):
                assert generate(prompts) == len(prompts) * NEW_TOKENS

        return perform

    return ready


def versions() -> dict[str, str]:
    packages = (looseleaf, torch, transformers)
    return {"python": platform.python_version()} | {each.__name__: each.__version__ for each in packages}


def table(report: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    lines = [report["machine"], versions, ""]
    lines.append(f"{'float32, tokens/s':<32} {'ours':>8} {'transformers':>14} {'ratio':>7}")
    for row in report["rows"]:
        lines.append(f"{row['name']:<32} {row['ours']:>8.1f} {row['peer']:>14.1f} {row['ratio']:>7.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
