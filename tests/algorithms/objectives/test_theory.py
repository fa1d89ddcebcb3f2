"""Theory on small problems where the answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyfed import Federation, Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.algorithms.objectives.fmgda import random_round
from polyfed.data.quadratic import quadratic, quadratic_loss
from polyfed.models.basic import Point


def quadratics(clients: int = 5, objectives: int = 2, dim: int = 4) -> tuple[Problem, Federation]:
    data = quadratic(seed=3, examples=20, dim=dim, objectives=objectives)
    federation = Federation.from_arrays(data.x, data.targets, clients=clients)
    problem = Problem(Point(dim), [Objective(n, quadratic_loss, {}) for n in data.targets], torch.float64)
    with torch.no_grad():
        problem.model.get_parameter("w").add_(3.0)  # away from the Pareto set
    return problem, federation


def losses(history: list[dict[str, Any]]) -> np.ndarray:
    return np.array([list(line["losses"].values()) for line in history])


def test_fmgda_converges_linearly_on_strongly_convex_quadratics() -> None:
    """sum_s lambda_s (f_s(x_t) - f_s(x_end)) falls geometrically, x_end the run's own limit."""
    problem, federation = quadratics()
    result = train(problem, federation, algorithms["fmgda"](lr=0.3, local_steps=1), rounds=120,
                   evaluate={"stationarity": 60})  # fmt: skip
    F = losses(result.history)
    lam = np.array([list(line["weights"].values()) for line in result.history])
    gap = (lam[1:41] * (F[:40] - F[-1])).sum(1)
    slope, residual = np.polyfit(np.arange(40), np.log(np.abs(gap)), 1, full=True)[:2]
    assert slope[0] < -0.02
    assert residual[0] / 40 < 0.2
    assert result.history[-1]["stationarity"] < 1e-4


def test_more_local_steps_need_fewer_rounds_but_stall_at_their_drift() -> None:
    """Rounds to a target fall with tau; |J w*| then stalls at O(eta_c tau), so a tenth of the step stalls lower."""
    rounds_to, floor = {}, {}
    for tau, lr, rounds in ((1, 0.3, 60), (5, 0.3, 60), (5, 0.03, 300)):
        problem, federation = quadratics()
        result = train(problem, federation, algorithms["fmgda"](lr=lr, local_steps=tau), rounds=rounds,
                       evaluate={"stationarity": 1, "every": rounds})  # fmt: skip
        found = np.array([line["stationarity"] for line in result.history])
        rounds_to[tau, lr] = int(np.argmax(found < 0.3))
        floor[tau, lr] = found[-1]
    assert rounds_to[5, 0.3] < rounds_to[1, 0.3] / 2
    assert floor[5, 0.03] < 0.3 * floor[5, 0.3]
    assert floor[5, 0.3] > 1e-6


def ripple(centre: float) -> Any:
    """A smooth, non-convex loss: a bowl with waves, around a centre."""

    def loss(w: Tensor, target: Tensor) -> Tensor:
        z = w - centre
        return (z * z / (1 + z * z) + 0.05 * (1 - torch.cos(3 * z))).sum(1) + 0 * target.reshape(-1)

    return loss


def test_one_over_t_on_a_smooth_non_convex_pair() -> None:
    """min_t |J lambda|^2 = O(1/T): T times it stays bounded."""
    worst = []
    for T in (20, 60, 180):
        problem = Problem(Point(2), [Objective("a", ripple(-1.0), {}), Objective("b", ripple(1.0), {})], torch.float64)
        with torch.no_grad():
            problem.model.get_parameter("w").add_(torch.tensor([2.5, -3.0], dtype=torch.float64))
        federation = Federation.from_arrays(np.zeros((4, 2)), np.zeros(4), clients=2)
        result = train(problem, federation, algorithms["fmgda"](lr=0.5, local_steps=1), rounds=T,
                       evaluate={"stationarity": 1, "every": T})  # fmt: skip
        worst.append(T * min(line["stationarity"] ** 2 for line in result.history))
    assert worst[2] <= 2 * worst[0] + 1e-9


@pytest.mark.parametrize("name", ["fsmgda", "fedcmoo"])
def test_iterates_end_pareto_stationary(name: str) -> None:
    problem, federation = quadratics(objectives=3)
    settings = {"lr": 0.05, "local_steps": 5, "batch_size": 0}
    extra = {"compress": "exact"} if name == "fedcmoo" else {}
    result = train(problem, federation, algorithms[name](**settings, **extra), rounds=80,
                   evaluate={"stationarity": 80, "every": 80})  # fmt: skip
    assert result.history[-1]["stationarity"] < 0.05


def distance(corner: list[float]) -> Any:
    """|w - corner|^2: two of them have the segment between their corners for a Pareto set."""
    c = torch.tensor(corner, dtype=torch.float64)
    return lambda w, target: (w - c).square().sum(1) + 0 * target.reshape(-1)


@pytest.mark.parametrize("r", [(1.0, 1.0), (1.0, 4.0), (3.0, 1.0)])
def test_a_preference_is_reached_on_a_known_front(r: tuple[float, float]) -> None:
    problem = Problem(
        Point(2), [Objective("a", distance([0.0, 0.0]), {}), Objective("b", distance([1.0, 0.0]), {})], torch.float64
    )
    with torch.no_grad():
        problem.model.get_parameter("w").add_(torch.tensor([0.3, 1.5], dtype=torch.float64))
    federation = Federation.from_arrays(np.zeros((4, 2)), np.zeros(4), clients=2)
    algorithm = algorithms["fedcmoo-pref"](
        preference={"a": r[0], "b": r[1]}, compress="exact", lr=0.02, local_steps=1, batch_size=0,
        min_weight=0.0, threshold=1e-4,
    )  # fmt: skip
    result = train(problem, federation, algorithm, rounds=700, evaluate={"every": 700})
    F = result.history[-1]["losses"]
    assert r[0] * F["a"] == pytest.approx(r[1] * F["b"], rel=0.06)
    # on the segment: w = (s, 0) with r_a s^2 = r_b (1 - s)^2
    s = np.sqrt(r[1]) / (np.sqrt(r[0]) + np.sqrt(r[1]))
    assert F["a"] == pytest.approx(s**2, rel=0.06)


def test_the_random_output_of_the_theorem() -> None:
    rng = np.random.default_rng(0)
    late = np.mean([random_round(1000, 1.0, 0.1, rng) for _ in range(300)])
    even = np.mean([random_round(1000, 0.0, 0.1, rng) for _ in range(300)])
    assert late > 970
    assert 440 < even < 560
    assert random_round(100_000, 1.0, 0.5, rng) > 99_000  # in log space: no overflow
    problem, federation = quadratics()
    random = train(problem, federation, algorithms["fmgda"](lr=0.1, local_steps=1, output="random"), rounds=8)
    models = []
    for rounds in range(1, 9):
        problem, federation = quadratics()
        models.append(train(problem, federation, algorithms["fmgda"](lr=0.1, local_steps=1), rounds=rounds).model)
    assert any(torch.equal(random.model.get_parameter("w"), model.get_parameter("w")) for model in models)
