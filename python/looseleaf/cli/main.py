"""The entry point: reads the command line, and turns every ending into an exit code.

0 means that all was done; 1 that the run failed, a closed output pipe included; 2 that the input was bad; 130
that Ctrl-C stopped it, after what was done had been written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from looseleaf.cli import demo, generate
from looseleaf.cli.exit_codes import BAD_INPUT, FAILED, INTERRUPTED
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
        prog="looseleaf", description="Text from a language model, on paged memory."
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
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except _BAD_INPUT_ERRORS as error:
        print(f"looseleaf: {error}", file=sys.stderr)
        return BAD_INPUT
    except LooseleafError as error:
        print(f"looseleaf: {error}", file=sys.stderr)
        return FAILED
    return code


def _discard_output() -> None:
    """Nobody reads any more: let the interpreter flush its last bytes into nothing instead of complaining."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
