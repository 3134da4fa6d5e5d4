"""Random numbers by position: Philox4x32-10, a generator without state.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A
number is a function of a key and a counter. With the request's seed as key and the position in its output as
counter, neither the batch nor a preemption can change which numbers a request draws.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL: Final = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW: Final = np.uint64(0xFFFFFFFF)
_WORD: Final = np.uint64(32)

# Counters of derived seeds differ from those of drawn numbers in their third word.
_SEED_DOMAIN: Final = 1

Words = npt.NDArray[np.uint64]


def philox(key: Words, counter: tuple[Words, Words, Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Ten rounds of Philox4x32, elementwise.

    Args:
        key: [n], 64-bit keys.
        counter: four arrays [n] of 32-bit words, the lowest first.

    Returns:
        four arrays [n] of 32-bit words, uniform.
    """
    k0, k1 = key & _LOW, key >> _WORD
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _WORD) ^ c1 ^ k0, p1 & _LOW, (p0 >> _WORD) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seeds: Words, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The number that each request draws for one position of its output.

    Args:
        seeds: [n], the requests' seeds.
        positions: [n], index of the token in the request's output, from 0.

    Returns:
        [n] in [0, 1), multiples of 2**-52.
    """
    position = positions.astype(np.uint64)
    zero = np.zeros_like(position)
    high, low, _, _ = philox(seeds, (position & _LOW, position >> _WORD, zero, zero))
    return ((high << np.uint64(20)) | (low >> np.uint64(12))).astype(np.float64) * 2.0**-52


def derived_seed(seed: int, number: int) -> int:
    """The seed of the ``number``-th request of an engine that was given ``seed``."""
    key = np.array([seed % 2**64], dtype=np.uint64)
    words = [
        np.array([word], dtype=np.uint64) for word in (number & 0xFFFFFFFF, number >> 32, _SEED_DOMAIN, 0)
    ]
    high, low, _, _ = philox(key, (words[0], words[1], words[2], words[3]))
    return int(high[0]) << 32 | int(low[0])
