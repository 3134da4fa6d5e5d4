"""What every test shares: Hypothesis profiles and the long matrices."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["model_fixtures"]

# A shell has the programs that it starts in the background ignore Ctrl-C; tests that send one must get it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of a torch operator wait for each other, on a busy machine longer than they work.
# It must be set before torch is imported. Paged attention has threads of its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A skip raised while a folder is collected would end the whole run: folders that need an extra are left out.
if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
    collect_ignore_glob = ["attention/*", "cli/*", "engine/*", "models/*", "tiers/*"]

# Shared machines pause for longer than any deadline that would mean something.
settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, print_blob=True)
# A machine of states is driven through a million steps.
settings.register_profile(
    "nightly",
    max_examples=2000,
    stateful_step_count=500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run the tests marked nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--nightly"):
        return
    long = [item for item in items if item.get_closest_marker("nightly")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
