"""Quadratics with a known minimiser: the testbed on which theory can be checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from polyfed.core.keys import generator
from polyfed.core.problem import Objective
from polyfed.core.room import check_room
from polyfed.data import Dataset, datasets


def quadratic_loss(w: Tensor, target: Tensor) -> Tensor:
    """1/2 w^T A w - b^T w for each example; a target row is A, row by row, then b."""
    n, p = w.shape
    A, b = target[:, : p * p].view(n, p, p), target[:, p * p :]
    return ((A @ w.unsqueeze(-1)).squeeze(-1) * w / 2 - b * w).sum(1)


@datasets("quadratic")
def quadratic(
    *,
    seed: int,
    examples: Annotated[int, Field(ge=1)] = 100,
    dim: Annotated[int, Field(ge=1)] = 4,
    objectives: Annotated[int, Field(ge=1)] = 2,
    condition: Annotated[float, Field(ge=1)] = 10.0,
) -> Dataset:
    """Strongly convex quadratics, one an example; model 'point', objectives 'f1', 'f2', ... with a known minimiser.

    Args:
        examples: how many quadratics there are of each objective.
        dim: how many numbers the point has.
        objectives: how many there are.
        condition: the eigenvalues of every quadratic lie between 1 / condition and 1; 1 makes them all 1.
    """
    check_room(2 * examples * objectives * dim * (dim + 1), "data.examples, data.dim and data.objectives")
    rng = generator(seed, "quadratic")
    names = [f"f{s + 1}" for s in range(objectives)]
    targets = {name: _random(rng, examples, dim, condition) for name in names}
    x = np.zeros((examples, dim), dtype=np.float32)
    known = partial(weighted_minimiser, targets["f1"]) if objectives == 1 else None  # of several, x* is no one point
    return Dataset(x, targets, tuple(Objective(name, quadratic_loss, {}) for name in names), minimiser=known)


def _random(rng: np.random.Generator, n: int, p: int, condition: float) -> NDArray[np.float64]:
    """n pairs (A, b): A with eigenvalues between 1 / condition and 1, b around a common centre."""
    Q = np.linalg.qr(rng.normal(size=(n, p, p)))[0]
    A = (Q * rng.uniform(1 / condition, 1, size=(n, 1, p))) @ Q.transpose(0, 2, 1)
    b = rng.normal(size=(1, p)) + rng.normal(size=(n, p)) / 2
    return np.concatenate([A.reshape(n, p * p), b], 1)


def minimiser(targets: Mapping[str, NDArray[np.float64]], weights: Mapping[str, float]) -> NDArray[np.float64]:
    """argmin_w sum_s weights_s mean_j f_sj(w), exactly."""
    total = sum(weight * targets[name].mean(0) for name, weight in weights.items())
    total = np.asarray(total)
    p = int((np.sqrt(1 + 4 * total.size) - 1) / 2)
    solution: NDArray[np.float64] = np.linalg.solve(total[: p * p].reshape(p, p), total[p * p :])
    return solution


def weighted_minimiser(target: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """argmin_w sum_j weights_j f_j(w), exactly."""
    return minimiser({"f": (weights @ target)[None]}, {"f": 1.0})
