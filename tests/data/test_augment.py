"""Rotation: keyed, exact where it can be, and in training only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyfed.client.runner import ClientRunner
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation
from polyfed.core.keys import bits, key
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.problem import Batch, Problem
from polyfed.core.tensorkeys import uniform
from polyfed.data.augment import Rotation
from polyfed.data.build import build_data
from polyfed.models.basic import linear


@pytest.mark.parametrize("of", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, key(3, "augment", 7)])
def test_draws_are_the_stream_of_the_key(of: int) -> None:
    """The tensors' signed arithmetic gives the bits of the unsigned one."""
    expected = (bits(of, 1000) >> np.uint64(40)).astype(np.float32) / 2**24
    assert np.array_equal(uniform(of, 1000).numpy(), expected)


def test_angles_are_uniform() -> None:
    u = uniform(key(1), 100_000)
    assert 0 <= float(u.min()) < 1e-3
    assert 1 - 1e-3 < float(u.max()) < 1
    assert torch.histc(u, 10, 0, 1).sub(1e4).abs().max() < 500


def test_quarter_turns_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every angle at 90 degrees, squares are what `rot90` makes of them; a wide image turns about its centre."""
    monkeypatch.setattr("polyfed.data.augment.uniform", lambda of, n, device: torch.ones(n))
    x = torch.rand(4, 2, 6, 6)
    assert torch.allclose(Rotation(90)(x, 0), torch.rot90(x, 1, (2, 3)), atol=1e-5)
    lying, standing = torch.zeros(2, 1, 1, 5, 9)
    lying[..., 2, 2:7] = 1
    standing[..., :, 4] = 1
    assert torch.allclose(Rotation(90)(lying, 0), standing, atol=1e-5)


def test_keyed_and_different_for_each_image() -> None:
    x = torch.rand(1, 1, 12, 12).expand(8, 1, 12, 12)
    turned = Rotation(25)(x, key(1))
    assert torch.equal(turned, Rotation(25)(x, key(1)))
    assert not torch.equal(turned, Rotation(25)(x, key(2)))
    assert len({tuple(image.flatten().tolist()) for image in turned}) == 8
    assert torch.allclose(Rotation(1e-6)(x, key(1)), x, atol=1e-5)


def test_outside_is_zero_and_types_stay() -> None:
    turned = Rotation(45)(torch.ones(50, 3, 10, 10, dtype=torch.float64), key(4))
    assert turned.dtype == torch.float64
    assert float(turned[..., 0, 0].min()) < 0.5
    assert torch.allclose(turned[..., 4:6, 4:6], torch.ones((), dtype=torch.float64))


def test_many_clients_at_once() -> None:
    """Mapped over clients' batches and keys, as one program, the images are the same."""
    x, keys = torch.rand(3, 5, 1, 8, 8), torch.tensor([5, -7, 2**62])
    together = torch.func.vmap(Rotation(25))(x, keys)
    assert all(torch.allclose(together[i], Rotation(25)(x[i], int(keys[i]) % 2**64), atol=1e-6) for i in range(3))


def _federation(rotate: float) -> tuple[Problem, Federation]:
    table = {"name": "two-digits", "examples": 60, "clients": 3, "test": 0.2, "rotate": rotate}
    dataset, federation, _ = build_data(table, seed=0)
    return Problem(linear(dataset), dataset.objectives), federation


def _seen(split: str, shuffle: bool, rotate: float = 25) -> list[torch.Tensor]:
    problem, federation = _federation(rotate)
    client = ClientRunner(problem, federation, Layers())._client(1, Request("sgd", {}))

    def step(carry: list[torch.Tensor], batch: Batch, i: int) -> list[torch.Tensor]:
        return [*carry, batch.x]

    return client.loop(step, [], batch_size=4, epochs=1, split=split, shuffle=shuffle)


def test_training_batches_are_turned_by_client_and_step() -> None:
    plain, turned = _seen("train", True, rotate=0), _seen("train", True)
    assert len(turned) == len(plain) == 4
    of = key(Request("sgd", {}).seed, Request("sgd", {}).round, 1)
    for i, (x, y) in enumerate(zip(plain, turned, strict=True)):
        assert torch.equal(y, Rotation(25)(x, key(of, "augment", i)))
        assert not torch.equal(x, y)


@pytest.mark.parametrize(("split", "shuffle"), [("train", False), ("test", False), ("test", True)])
def test_measuring_never_turns(split: str, shuffle: bool) -> None:
    for x, y in zip(_seen(split, shuffle, rotate=0), _seen(split, shuffle), strict=True):
        assert torch.equal(x, y)


def test_only_images_can_be_turned() -> None:
    with pytest.raises(BadInput, match=r"data.rotate is for images \(channels, h, w\). Found examples of shape \(4,\)"):
        build_data({"name": "quadratic", "examples": 10, "clients": 2, "rotate": 25}, seed=0)
