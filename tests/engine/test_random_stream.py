"""The counter-based generator against published vectors and the statistics it promises."""

from __future__ import annotations

import numpy as np
import pytest

from looseleaf.engine.random_stream import derived_seed, philox, uniform

# Random123 1.14, tests/kat_vectors, lines "philox4x32 10": counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def _word(value: int) -> np.ndarray:
    return np.array([value], dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, answer):
    words = philox(_word(key[0] | key[1] << 32), tuple(_word(word) for word in counter))
    assert tuple(int(word[0]) for word in words) == answer


def test_a_number_depends_on_its_own_seed_and_position_alone():
    seeds = np.array([1, 2, 3, 2**64 - 1], dtype=np.uint64)
    positions = np.array([0, 5, 2**33, 7])
    together = uniform(seeds, positions)
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(4)]
    assert together.tolist() == alone


def test_numbers_are_spread_evenly_over_positions_and_over_neighbouring_seeds():
    along = uniform(np.full(20_000, 7, np.uint64), np.arange(20_000))
    across = uniform(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.int64))
    for numbers in (along, across):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
        # Chi-square with 99 degrees of freedom exceeds 148 once in a thousand.
        assert ((counts - 200) ** 2 / 200).sum() < 148
    assert abs(np.corrcoef(along[:-1], along[1:])[0, 1]) < 0.03


def test_derived_seeds_differ_and_are_not_the_numbers_that_requests_draw():
    seeds = {derived_seed(seed, number) for seed in (0, 1, -1) for number in range(1000)}
    assert len(seeds) == 3000
    assert all(0 <= seed < 2**64 for seed in seeds)
    drawn = philox(_word(0), (_word(0), _word(0), _word(0), _word(0)))
    assert derived_seed(0, 0) != int(drawn[0][0]) << 32 | int(drawn[1][0])
