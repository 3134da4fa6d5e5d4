"""The command line sets up logging for its process; here many command lines share one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    logger = logging.getLogger("looseleaf")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)
