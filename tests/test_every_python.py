"""The one extension that was built works on every CPython from 3.11 on that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import looseleaf

SCRIPT = Path(__file__).with_name("core_script.py")
ABOUT = """
import platform, sys, sysconfig
stable_abi = not sysconfig.get_config_var("Py_GIL_DISABLED")
if platform.python_implementation() == "CPython" and sys.version_info >= (3, 11) and stable_abi:
    print(platform.python_version(), sys.executable, sep="\\n")
"""


def candidates() -> Iterator[str]:
    """The running interpreter, those that pyenv keeps, and those on the path."""
    yield sys.executable
    directories = os.environ.get("PATH", "").split(os.pathsep)
    if root := os.environ.get("PYENV_ROOT"):
        yield from map(str, sorted(Path(root).glob("versions/*/bin/python")))
        # These only forward to the interpreters just named, or fail.
        directories = [found for found in directories if Path(found) != Path(root, "shims")]
    for minor in range(11, 16):
        if found := shutil.which(f"python3.{minor}", path=os.pathsep.join(directories)):
            yield found


def interpreters() -> list[object]:
    """Those that can load the extension: each executable once, named by its version and directory."""
    found: dict[Path, object] = {}
    for candidate in candidates():
        told = subprocess.run([candidate, "-c", ABOUT], capture_output=True, text=True, check=False)
        if told.returncode == 0 and told.stdout:
            version, executable = told.stdout.splitlines()
            name = f"{version} in {Path(executable).parent}"
            found.setdefault(Path(executable).resolve(), pytest.param(executable, id=name))
    return list(found.values())


@pytest.mark.parametrize("executable", interpreters())
def test_pool_and_manager_work_without_any_other_package(executable):
    package = Path(looseleaf.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    ran = subprocess.run(
        [executable, "-B", "-W", "error", str(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
