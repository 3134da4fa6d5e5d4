"""``looseleaf demo``: chats that share a system prompt, and what sharing it saved."""

from __future__ import annotations

import argparse

from looseleaf.cli import generate, options
from looseleaf.cli.exit_codes import MEANINGS

# Nine blocks of sixteen tokens that every chat needs, and that are computed and stored once.
_SYSTEM = """\
You are a helpful assistant. Answer in two or three short sentences. Be friendly and precise. Use short \
words and short sentences. Give one reason or one example that a child of eight can picture, such as \
something from the kitchen, the garden or the playground. Never make fun of a question; there are no silly \
questions. If something is dangerous, say so, and say that a grown-up should help. If people do not know \
the answer for sure, say that too, because science is not finished. Do not use lists, headings or numbers \
with many digits. Do not repeat the question. Write two or three sentences, and then stop."""

_QUESTIONS = (
    "Why is the sky blue?",
    "What do plants need to grow?",
    "What is the capital of France?",
    "Who was the first person to walk on the moon?",
    "What is gravity?",
    "How does a magnet work?",
    "Why do we need sleep?",
    "Why is the sea salty?",
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the command line: ``generate`` with the prompts given."""
    parser = commands.add_parser(
        "demo",
        help="several chats that share a system prompt",
        description="Answer several chats that share a system prompt, and say what sharing it saved.",
        epilog=MEANINGS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model_flag(parser)
    options.add_output_flags(parser)
    options.add_sampling_flags(parser)
    options.add_engine_flags(parser)
    parser.set_defaults(
        run=generate.run,
        prompt=list(_QUESTIONS),
        file=None,
        system=_SYSTEM,
        chat=True,
        stats=True,
        keep_going=False,
        max_tokens=64,
    )
