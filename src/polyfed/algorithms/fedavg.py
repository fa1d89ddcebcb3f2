"""FedAvg (McMahan et al. 2017) and FedProx (Li et al. 2020), with several objectives under fixed weights.

Client i takes local steps on sum_s omega_s f_si from x to x_i and sends x - x_i; the server takes
x <- x - eta_s sum_i a_i (x - x_i) / sum_i a_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from polyfed.algorithms import Diagnostics, State, algorithms
from polyfed.algorithms.base import STRICT, LocalTraining, NotNegative, Rate, at, present, spread
from polyfed.errors import BadInput, nearest
from polyfed.fleet import Door
from polyfed.messages import Option, Request
from polyfed.problem import Problem


@algorithms("fedavg")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedAvg(LocalTraining):
    """Averages the clients' local updates; several objectives are summed under fixed `weights`."""

    server_lr: Rate = 1.0
    weights: Mapping[str, NotNegative] = field(default_factory=dict)

    def init(self, problem: Problem) -> State:
        fixed(self.weights, problem.names)  # refuses unknown names before anything is written
        return dict(problem.initial())

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        cohort = fleet.cohort(t)
        lam = present(fixed(self.weights, fleet.names), fleet.holds[cohort])
        omega = spread(lam, self.shares(cohort, fleet), fleet.holds[cohort])
        x = state["x"]
        shared = {"x": x, "buffers": state["buffers"], "omega": torch.as_tensor(omega, dtype=x.dtype)}
        total = fleet.sum(cohort, Request("sgd", shared, options=self.options(t)))
        mean = total["delta"] / total["weight"]
        state = {"x": x - at(self.server_lr, t) * mean, "buffers": total["buffers"] / total["weight"]}
        return state, {"weights": torch.from_numpy(lam), "train": total["losses"] / total["heard"]}

    def options(self, t: int) -> dict[str, Option]:
        return self.local(t)


@algorithms("fedprox")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class FedProx(FedAvg):
    """FedAvg whose clients are held near the server's model by mu/2 |w - x|^2."""

    mu: NotNegative = 0.01

    def options(self, t: int) -> dict[str, Option]:
        return {**self.local(t), "mu": self.mu}


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
