"""What the check of instruction counts lets pass. The counts are made up."""

from __future__ import annotations

import pytest
from instructions import Operation, compare, complaints_about

PORTABLE = Operation("allocate", calls=10, checked=True)
PROCESSOR_BOUND = Operation("hash", calls=10, checked=False)


def complaints(operation, *, counted, recorded):
    rows = compare([operation], {operation.name: counted}, recorded)
    return list(complaints_about(rows, recorded))


@pytest.mark.parametrize("counted", [1, 1000, 1100])
def test_up_to_a_tenth_more_than_recorded_passes(counted):
    assert complaints(PORTABLE, counted=counted, recorded={"allocate": 1000}) == []


def test_more_than_a_tenth_more_than_recorded_fails():
    (complaint,) = complaints(PORTABLE, counted=1101, recorded={"allocate": 1000})
    assert complaint == "allocate: 1101 instructions, 1000 recorded: +10.1%"


def test_an_operation_whose_code_depends_on_the_processor_may_take_any_number():
    assert complaints(PROCESSOR_BOUND, counted=9000, recorded={"hash": 1000}) == []


@pytest.mark.parametrize("operation", [PORTABLE, PROCESSOR_BOUND])
def test_an_operation_without_a_record_fails(operation):
    assert complaints(operation, counted=1, recorded={}) == [f"{operation.name}: not recorded"]


def test_a_record_without_an_operation_fails():
    (complaint,) = complaints(PORTABLE, counted=1000, recorded={"allocate": 1000, "free": 1})
    assert complaint == "free: recorded, but there is no such operation"
