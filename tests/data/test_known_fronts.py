"""Problems whose front is known: their losses are the formulas, wherever the point is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyfed.data import Dataset
from polyfed.data.build import build_data
from polyfed.data.paraboloids import paraboloids
from polyfed.data.vlmop1 import vlmop1


def losses(data: Dataset, w: list[float]) -> list[float]:
    rows = torch.tensor(w).expand(len(data.x), -1)
    found = []
    for objective in data.objectives:
        assert callable(objective.loss)
        found.append(objective.loss(rows, torch.from_numpy(data.targets[objective.name])).mean().item())
    return found


@pytest.mark.parametrize("dim", [1, 4, 9])
@pytest.mark.parametrize("s", [-1.0, -0.3, 0.0, 1.0])
def test_vlmop1_on_its_front(dim: int, s: float) -> None:
    found = losses(vlmop1(seed=0, examples=3, dim=dim), [s / np.sqrt(dim)] * dim)
    assert found == pytest.approx([1 - np.exp(-((1 - s) ** 2)), 1 - np.exp(-((1 + s) ** 2))], abs=1e-6)


def test_paraboloids_have_minimum_zero_at_the_corners_of_a_simplex() -> None:
    data = paraboloids(seed=0, examples=2, objectives=3)
    assert losses(data, [0.0, 1.0, 0.0]) == pytest.approx([1.0, 0.0, 1.0])
    assert losses(data, [0.5, 0.5, 0.0]) == pytest.approx([0.25, 0.25, 0.75])


@pytest.mark.parametrize("name", ["vlmop1", "paraboloids"])
def test_every_client_has_the_same(name: str) -> None:
    _, federation, _ = build_data({"name": name, "examples": 6, "clients": 3}, seed=0)
    assert federation.examples.tolist() == [2, 2, 2]
    assert all(torch.equal(target, target[:1].expand_as(target)) for target in federation.targets.values())
