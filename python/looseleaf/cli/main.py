"""The entry point: reads the command line, and turns every ending into an exit code.

:mod:`looseleaf.cli.exit_codes` has them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from looseleaf.cli import demo, generate
from looseleaf.cli.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, MEANINGS
from looseleaf.errors import (
    InvalidConfigError,
    LooseleafError,
    MissingExtraError,
    ModelLoadError,
    NeverFitsError,
    RequestError,
    UnsupportedError,
)

_BAD_INPUT_ERRORS = (
    generate.UsageError,
    InvalidConfigError,
    MissingExtraError,
    ModelLoadError,
    NeverFitsError,
    RequestError,
    UnsupportedError,
)


class _Version(argparse.Action):
    """Prints the version; the extension that knows it is loaded only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from looseleaf import __version__

        print(f"looseleaf {__version__}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="looseleaf",
        description="Text from a language model, on paged memory.",
        epilog=MEANINGS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    generate.add_command(commands)
    demo.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after the program's name; those of the process by default.

    Returns:
        the exit code.
    """
    if sys.stderr is None:  # it was closed; print() would then take standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        return _run(argv)
    except BrokenPipeError:
        _let_go_of_streams()
    except OSError as error:
        if error.filename is not None:  # not of a stream that is open
            raise
        _let_go_of_streams()
        print(f"looseleaf: the output cannot be written: {error.strerror}", file=sys.stderr)
    return FAILED


def _run(argv: Sequence[str] | None) -> int:
    """Run one command, and write all that there is to say about it."""
    try:
        args = build_parser().parse_args(argv)
        code: int = args.run(args)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except _BAD_INPUT_ERRORS as error:
        print(f"looseleaf: {error}", file=sys.stderr)
        return BAD_INPUT
    except LooseleafError as error:
        print(f"looseleaf: {error}", file=sys.stderr)
        return FAILED
    finally:
        for stream in _streams():  # argparse's help, too
            stream.flush()
    return code


def _streams() -> list[TextIO]:
    """Standard output, unless it was closed, and standard error."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _let_go_of_streams() -> None:
    """Let the interpreter flush what nobody takes into nothing, instead of complaining at its end."""
    for stream in _streams():
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
