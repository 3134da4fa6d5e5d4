"""``looseleaf generate``: prompts in, text out."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO

from looseleaf.cli import options, prompts
from looseleaf.cli.exit_codes import BAD_INPUT, DONE, FAILED, INTERRUPTED, MEANINGS
from looseleaf.cli.jobs import for_engine, with_params
from looseleaf.cli.prompts import BadPrompt, Prompt
from looseleaf.cli.results import InOrder, JsonWriter, Refused, TextWriter, Writer
from looseleaf.cli.runs import write_as_it_grows, write_in_order
from looseleaf.cli.summary import summarize
from looseleaf.cli.terminal import log_to

_DESCRIPTION = """
Continue prompts, or answer them where the model was made for chats. Prompts come from --prompt, from --file,
or from standard input, which is one prompt as a whole. One prompt is written while it grows; the texts of
several come in the order of the prompts.

A line of --file is a JSON string, or an object with "prompt" or "prompt_token_ids", and any of "cache_salt"
and the sampling flags' names (max_tokens, temperature, ...) for this prompt alone.
"""


class UsageError(Exception):
    """Flags that do not go together, or input that is not there."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``generate`` to the command line."""
    parser = commands.add_parser(
        "generate",
        help="continue prompts or answer them",
        description=_DESCRIPTION,
        epilog=MEANINGS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    options.add_model_flag(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt; repeatable")
    source.add_argument("--file", metavar="PATH", help="prompts as JSON Lines; - is standard input")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before each prompt")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="put prompts into the model's chat template (default where it has one)",
    )
    mode.add_argument("--raw", dest="chat", action="store_false", help="let the model continue the bare text")
    parser.add_argument("--stats", action="store_true", help="end with figures of the run")
    parser.add_argument("--keep-going", action="store_true", help="run the other prompts when some are bad")
    options.add_output_flags(parser)
    options.add_sampling_flags(parser)
    options.add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out ``generate``.

    Returns:
        the exit code.

    Raises:
        UsageError: flags do not go together, or there is nothing to read.
        LooseleafError: the model or the engine refuses what was asked for.
    """
    if sys.stdout is None:
        raise UsageError("standard output is closed: there is nowhere to write")
    if args.system is not None:
        if args.chat is False:
            raise UsageError("--system is part of a chat: leave out --raw")
        try:
            prompts.check_argument(args.system)
        except ValueError as error:
            raise UsageError(f"--system: {error}") from None
    entries = _entries(args)
    jobs, refused = with_params(entries, options.CLI_SAMPLING | options.given(args, options.SAMPLING_FIELDS))
    others = "the others that suit the model"  # which is not loaded yet
    if not _may_run(jobs, refused, others, keep_going=args.keep_going):
        return BAD_INPUT
    log = log_to(sys.stderr, quiet=args.quiet)
    from looseleaf import LLM  # loads torch, which takes seconds: what can be refused is refused before

    llm = LLM(args.model, **options.given(args, options.ENGINE_FIELDS))
    agreed, unfit = for_engine(llm, jobs, chat=args.chat, system=args.system)
    if not _may_run(agreed, unfit, f"the other {len(agreed)}", keep_going=args.keep_going):
        return BAD_INPUT
    writer: Writer = (
        JsonWriter(sys.stdout) if args.json else TextWriter(sys.stdout, sys.stderr, titled=len(entries) > 1)
    )
    started = time.monotonic()
    if len(entries) == 1 and not args.json:
        log.setLevel(logging.WARNING)  # a line of INFO would land in the middle of the text
        tally = write_as_it_grows(llm, agreed[0], sys.stdout)
    else:
        results = InOrder(writer)
        for bad in (*refused, *unfit):
            results.add(bad)
        tally = write_in_order(llm, agreed, results, log)
    if args.stats:
        writer.summarize(summarize(llm, len(agreed), time.monotonic() - started))
    if tally.interrupted:
        print(f"interrupted: {tally.num_finished} of {len(agreed)} prompts finished", file=sys.stderr)
        return INTERRUPTED
    if tally.num_failed:
        return FAILED
    return BAD_INPUT if refused or unfit else DONE


def _entries(args: argparse.Namespace) -> list[Prompt | BadPrompt]:
    """Everything that was given as a prompt, in order."""
    if args.prompt:
        return [*prompts.from_flags(args.prompt)]
    stdin: BinaryIO | None = getattr(sys.stdin, "buffer", None)  # sys.stdin is None where it was closed
    if args.file is not None:
        try:
            entries = prompts.from_file(args.file, stdin)
        except OSError as error:
            raise UsageError(f"--file {args.file}: {error.strerror or error}") from error
        if not entries:
            raise UsageError(f"--file {args.file} has no prompts")
        return entries
    if stdin is None or stdin.isatty():
        raise UsageError("nothing to do: give --prompt or --file, or pipe a prompt into standard input")
    return [prompts.from_stdin(stdin)]


def _may_run(
    runnable: Sequence[object], refused: Sequence[Refused], others: str, *, keep_going: bool
) -> bool:
    """Report what was refused, and say whether the ``others`` are to run."""
    for bad in refused:
        print(f"looseleaf: {bad.why}", file=sys.stderr)
    if refused and not keep_going and runnable:
        counts = f"{len(refused)} of {len(refused) + len(runnable)} prompts refused"
        print(f"looseleaf: nothing was run, {counts}; --keep-going runs {others}", file=sys.stderr)
    return bool(runnable) and (keep_going or not refused)
