"""Threads, ours and the caller's, change no result."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from attention.scene import Heads, Row, Scene
from looseleaf.attention.cpu import CpuBackend
from looseleaf.errors import InvalidConfigError


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_are_the_same_on_any_number_of_threads(dtype: str) -> None:
    # Long rows that are cut into parts, prompts of several tiles, and short rows.
    rows = [Row(5000, 1), Row(300, 300), Row(1, 1), Row(2100, 2), Row(400, 50), Row(17, 1)]
    scene = Scene(Heads(dtype=dtype), rows)
    results = []
    for num_threads in (1, 2, 3, 8):
        backend = CpuBackend(scene.spec, num_threads=num_threads)
        assert backend.num_threads == num_threads
        scene.fill(backend)
        results += [scene.attend(backend, softcap=30.0), scene.attend(backend, softcap=30.0)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_by_default_every_processor_takes_part() -> None:
    scene = Scene(Heads(), [Row(1, 1)])
    assert CpuBackend(scene.spec).num_threads == len(os.sched_getaffinity(0))


def test_no_threads_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match="num_threads: found 0, required 1 or more"):
        CpuBackend(Scene(Heads(), [Row(1, 1)]).spec, num_threads=0)


def test_callers_on_several_threads_get_the_results_they_would_get_alone() -> None:
    scene = Scene(Heads(), [Row(2000, 1), Row(300, 100)])
    backend = CpuBackend(scene.spec, num_threads=2)
    scene.fill(backend)
    expected = scene.attend(backend)
    keys = torch.rand(2, 2, 64)

    def read_and_write(turn: int) -> bool:
        backend.write(0, keys, keys, torch.tensor([turn, turn + 1]))
        return torch.equal(scene.attend(backend), expected)

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(read_and_write, range(40)))


FORKED = """
import os, sys
from attention.scene import Heads, Row, Scene
from looseleaf.attention.cpu import CpuBackend
scene = Scene(Heads(), [Row(2000, 1), Row(300, 100)])
backend = CpuBackend(scene.spec, num_threads=2)
scene.fill(backend)
expected = scene.attend(backend)
child = os.fork()
if child == 0:
    # NumPy compares: torch's own threads are lost as well, and it would wait for them.
    os._exit(0 if (scene.attend(backend).numpy() == expected.numpy()).all() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_computes_without_the_threads_it_lost() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=60, env=environment())


def environment() -> dict[str, str]:
    """This process's environment, with its import path."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
