"""The command line: ``looseleaf generate`` and ``looseleaf demo``."""

from looseleaf.cli.main import main

__all__ = ["main"]
