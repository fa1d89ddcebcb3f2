"""Several objectives as one: summed under weights that somebody gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.algorithms.base import objective_weights, present
from polyfed.algorithms.server_optimizers import ServerOptimised
from polyfed.core.algorithm import Algorithm, State
from polyfed.core.door import Door
from polyfed.core.errors import BadInput, nearest
from polyfed.core.problem import Problem
from polyfed.core.settings import NotNegative, settings


@settings
class Scalarised(ServerOptimised, Algorithm):
    """Several objectives summed under fixed weights.

    Args:
        weights: an objective's weight by its name; all alike if none are given.
    """

    weights: Mapping[str, NotNegative] = field(default_factory=dict)

    def init(self, problem: Problem) -> State:
        return dict(problem.initial())

    def check(self, problem: Problem, clients: int) -> None:
        """Refuse names that are no objectives."""
        fixed(self.weights, problem.names)

    def scalarised(
        self, state: State, cohort: Sequence[int], a: NDArray[np.float64], stakes: NDArray[Any], fleet: Door
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weights among the objectives that the cohort holds, and the arrays of a request for local work."""
        lam = present(fixed(self.weights, fleet.names), fleet.holds[cohort])
        omega = torch.as_tensor(objective_weights(lam, a, stakes), dtype=state["x"].dtype)
        return torch.from_numpy(lam), {"x": state["x"], "buffers": state["buffers"], "omega": omega}


def fixed(weights: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
    """Given weights by objective name, on the simplex; uniform when none are given."""
    for name in weights:
        if name not in names:
            raise BadInput(f"algorithm.weights names {name!r}, which is no objective here.{nearest(name, names)}")
    lam = np.array([weights.get(name, 0.0) for name in names]) if weights else np.ones(len(names))
    if not lam.sum() > 0:
        raise BadInput(f"algorithm.weights should give some objective a positive weight. Found {dict(weights)}.")
    simplex: NDArray[np.float64] = lam / lam.sum()
    return simplex
