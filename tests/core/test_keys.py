"""Randomness is a hash: known values, uniform, and the same on signed integers."""

from __future__ import annotations

import numpy as np
import torch

from polyfed.core.keys import bits, generator, key, permutation
from polyfed.core.tensorkeys import normal


def test_known_values_never_change() -> None:
    # a change here would change every published run
    assert key(0) == 0xE220A8397B1DCDAF  # splitmix64's first output
    assert key(0, 1, 2, "batch") == 0x8A72A7EDA67DD912 != key(0, 2, 1, "batch")
    assert permutation(7, 6).tolist() == [1, 5, 0, 4, 3, 2]
    assert generator(0, "cohort", 3).integers(1 << 30) == 929751118


def test_stream_is_uniform() -> None:
    u = bits(key(1), 100_000).astype(float) / 2**64
    assert abs(u.mean() - 0.5) < 0.005
    assert abs(u.var() - 1 / 12) < 0.002
    counts = np.bincount((u * 16).astype(int))
    assert ((counts - 6250) ** 2 / 6250).sum() < 40  # chi-square, 15 degrees of freedom


def test_permutation_is_one() -> None:
    assert sorted(permutation(key(5), 1000)) == list(range(1000))


def test_signed_arithmetic_gives_the_same_bits() -> None:
    """What a GPU will do: wrap-around int64 with logical shifts made from arithmetic ones."""

    def shift(z: torch.Tensor, k: int) -> torch.Tensor:
        return (z >> k) & ((1 << (64 - k)) - 1)

    def signed(v: int) -> int:
        return v - (1 << 64) if v >= 1 << 63 else v

    of = key(3, 4)
    z = torch.arange(1, 51) * signed(0x9E3779B97F4A7C15) + signed(of)
    z = (z ^ shift(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shift(z, 27)) * signed(0x94D049BB133111EB)
    z = z ^ shift(z, 31)
    assert (z.numpy().view(np.uint64) == bits(of, 50)).all()
    assert shift(z, 1).sort(stable=True).indices.tolist() == permutation(of, 50).tolist()


def test_normal_numbers_are_normal_for_one_key_and_for_many() -> None:
    many = torch.func.vmap(lambda of: normal(of, 20_000))(torch.tensor([7, -9]))
    assert torch.equal(many[0], normal(7, 20_000))
    for moment, wanted in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert abs(float((many**moment).mean()) - wanted) < 0.1
    assert abs(float((many[:, ::2] * many[:, 1::2]).mean())) < 0.02
