"""Randomness without state: every draw is a hash of what it is for.

A key is a 64-bit integer mixed from (seed, round, client, purpose, ...). Nothing here depends on global state, on
the order in which clients answer, or on the machine: only additions, multiplications and shifts modulo 2^64
(splitmix64; Steele, Lea, Flood 2014), which a GPU does to the same bits.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_A, MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(*parts: int | str) -> int:
    """One 64-bit key from integers and words, in order: `key(seed, round, client, "batch")`."""
    z = 0
    for part in parts:
        number = zlib.crc32(part.encode()) if isinstance(part, str) else part
        z = _mix((z ^ (number & _MASK)) + GOLDEN & _MASK)
    return z


def client_key(seed: int, round: int, client: int) -> int:
    """The key that seeds all of a client's randomness in a round."""
    return key(seed, round, client)


def common_key(seed: int, round: int) -> int:
    """A key that all clients of a round share, so that their hashes agree without being sent."""
    return key(seed, round, "common")


def other(draw: int) -> tuple[int, ...]:
    """What a key has more than that of the first draw, which is as it always was."""
    return (draw,) if draw else ()


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * MIX_A & _MASK
    z = (z ^ (z >> 27)) * MIX_B & _MASK
    return z ^ (z >> 31)


def bits(of: int, n: int) -> NDArray[np.uint64]:
    """The first n numbers of the key's stream: n independent 64-bit hashes."""
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(of)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_A)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_B)
    return z ^ (z >> np.uint64(31))


def permutation(of: int, n: int) -> NDArray[np.int64]:
    """A random order of 0..n-1. The top bit is dropped so that signed and unsigned sorts agree."""
    return np.argsort(bits(of, n) >> np.uint64(1), kind="stable")


def generator(*parts: int | str) -> np.random.Generator:
    """A numpy generator for draws that only the server makes: cohorts, partitions, synthetic data."""
    return np.random.Generator(np.random.Philox(key=key(*parts)))
