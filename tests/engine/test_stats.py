"""The periodic line and the hit rate."""

from __future__ import annotations

import logging

import pytest

from looseleaf.engine.stats import EngineStats, HitRate, PeriodicLog


@pytest.fixture
def log_lines(caplog):
    caplog.set_level(logging.INFO, logger="looseleaf")
    return lambda: caplog.messages


def report(log: PeriodicLog, now: float) -> None:
    log.report(now, running=3, waiting=2, usage=0.125, hit_percent=33.333)


def test_the_line_has_the_rates_of_its_interval(log_lines):
    stats = EngineStats()
    log = PeriodicLog(stats, now=100.0)
    stats.num_prompt_tokens, stats.num_generation_tokens = 500, 60
    report(log, 109.9)
    assert log_lines() == []
    report(log, 110.0)
    stats.num_prompt_tokens, stats.num_generation_tokens = 500, 80
    report(log, 130.0)
    assert log_lines() == [
        "Avg prompt throughput: 50.0 tokens/s, Avg generation throughput: 6.0 tokens/s, Running: 3 reqs,"
        " Waiting: 2 reqs, KV cache usage: 12.5%, Prefix cache hit rate: 33.3%",
        "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 3 reqs,"
        " Waiting: 2 reqs, KV cache usage: 12.5%, Prefix cache hit rate: 33.3%",
    ]


def test_preemptions_appear_in_intervals_that_had_any(log_lines):
    stats = EngineStats()
    log = PeriodicLog(stats, now=0.0)
    stats.num_preemptions = 4
    report(log, 10.0)
    report(log, 20.0)
    stats.num_preemptions = 5
    report(log, 30.0)
    first, second, third = log_lines()
    assert "Waiting: 2 reqs, Preemptions: 4, KV cache usage" in first
    assert "Preemptions" not in second
    assert "Preemptions: 1, " in third


def test_idle_time_before_the_first_request_is_not_averaged_in(log_lines):
    stats = EngineStats()
    log = PeriodicLog(stats, now=0.0)
    log.restart(1000.0)
    stats.num_generation_tokens = 100
    report(log, 1010.0)
    assert "Avg generation throughput: 10.0 tokens/s" in log_lines()[0]


def test_the_hit_rate_counts_tokens_of_the_last_thousand_requests():
    rate = HitRate()
    assert rate.percent == 0.0
    rate.record(30, 10)
    rate.record(10, 10)
    assert rate.percent == 50.0
    for _ in range(1000):
        rate.record(4, 1)
    assert rate.percent == 25.0
    rate.clear()
    assert rate.percent == 0.0
