"""Ctrl-C arrives when nothing is half done."""

from __future__ import annotations

import signal
import threading

import pytest

from looseleaf.engine.interrupts import DeferredInterrupt


def test_an_interrupt_inside_the_block_is_raised_at_its_end():
    steps = []

    def press_and_go_on():
        with DeferredInterrupt():
            signal.raise_signal(signal.SIGINT)
            steps.append("went on")

    with pytest.raises(KeyboardInterrupt):
        press_and_go_on()
    assert steps == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_inside_the_block_is_not_hidden_by_the_interrupt():
    def press_and_fail():
        with DeferredInterrupt():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("inner")

    with pytest.raises(ValueError, match="inner"):
        press_and_fail()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_somebody_elses_handler_stays_in_charge():
    caught = []
    before = signal.signal(signal.SIGINT, lambda *_: caught.append(True))
    try:
        with DeferredInterrupt():
            signal.raise_signal(signal.SIGINT)
            assert caught == [True]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handler_alone():
    seen = []

    def run():
        with DeferredInterrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
