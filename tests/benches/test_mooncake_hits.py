"""Recorded traces through the pool. The figures are another program's: see ``benches/traces/README.md``."""

from __future__ import annotations

import pytest
from traces import mooncake

EVERY_RUN = {("conversation", 10_000), ("synthetic", 1000), ("synthetic", 30_000)}


@pytest.mark.parametrize(
    ("trace", "num_usable"),
    [
        pytest.param(*case, marks=() if case in EVERY_RUN else pytest.mark.nightly)
        for case in mooncake.LRU_HIT_TOKENS
    ],
)
def test_a_replayed_trace_hits_exactly_the_published_tokens(trace, num_usable):
    assert mooncake.replayed_hit_tokens(trace, num_usable) == mooncake.LRU_HIT_TOKENS[trace, num_usable]
