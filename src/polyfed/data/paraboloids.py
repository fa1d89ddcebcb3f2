"""Quadratics with minimum 0, each at a corner of a simplex: their front is known, and convex."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from polyfed.core.problem import Objective
from polyfed.core.room import check_room
from polyfed.data import Dataset, datasets


def paraboloid(w: Tensor, centre: Tensor) -> Tensor:
    """|w - centre|^2 / 2 for each example."""
    return (w - centre).square().sum(1) / 2


@datasets("paraboloids")
def paraboloids(
    *, seed: int, examples: Annotated[int, Field(ge=1)] = 100, objectives: Annotated[int, Field(ge=2)] = 2
) -> Dataset:
    """f_k = |w - e_k|^2 / 2, with e_k the k-th unit vector; model 'point'. The same at every client.

    The front is at the w that are not negative and add up to 1. Of two objectives it is f(s) = ((1 - s)^2, s^2).

    Args:
        examples: rows, all alike.
        objectives: how many there are; the point has as many numbers.
    """
    check_room(4 * examples * objectives * (objectives + 1), "data.examples and data.objectives")
    x = np.zeros((examples, objectives), dtype=np.float32)
    targets = {f"f{k + 1}": x + np.eye(objectives, dtype=np.float32)[k] for k in range(objectives)}
    return Dataset(x, targets, tuple(Objective(name, paraboloid, {}) for name in targets))
