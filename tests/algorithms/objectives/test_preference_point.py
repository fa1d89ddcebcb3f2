"""Where FedCMOO-Pref ends: r_1 F_1 = ... = r_M F_M."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed import BadInput, FedCMOOPref, Federation, Objective, Problem, train
from polyfed.weights import preference, proximal, still_owed


class Point(nn.Module):
    """A model that is its own output."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        return self.x.expand(len(x), -1)


def half_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).sum(1) / 2


def ends(M: int, seed: int, rounds: int = 60, **settings: object) -> list[float]:
    """r_k F_k at the end, on f_k = |x - c_k|^2 / 2, for a random r whose point lies on the front."""
    rng = np.random.default_rng(seed)
    c = rng.normal(size=(M, 6))
    r = 2 / ((rng.dirichlet(np.ones(M)) @ c - c) ** 2).sum(1)
    names = [f"f{k}" for k in range(M)]
    targets = {name: np.tile(at, (4, 1)) for name, at in zip(names, c, strict=True)}
    federation = Federation.from_arrays(np.zeros((4, 1)), targets, clients=2)
    problem = Problem(Point(6), [Objective(name, half_square) for name in names], torch.float64)
    method = FedCMOOPref(preference=dict(zip(names, r.tolist(), strict=True)), **settings)  # type: ignore[arg-type]
    result = train(problem, federation, method, rounds=rounds, cohort="all", evaluate={"every": rounds})
    return [r[k] * F for k, F in enumerate(result.history[-1]["losses"].values())]


@pytest.mark.parametrize(("M", "seed"), [(M, seed) for M in (2, 3, 4) for seed in range(10)])
def test_with_its_defaults_it_ends_at_the_point(M: int, seed: int) -> None:
    values = ends(M, seed)
    assert max(values) <= 1.05 * min(values)


def test_the_papers_program_is_there_by_name_and_stays_away_from_the_point() -> None:
    """F4: the balancing ends at mu = 0.01, and vertices overshoot."""
    far = [max(values) / min(values) for s in range(4) for values in [ends(3, s, program="paper")]]
    assert max(far) > 1.05


def test_the_papers_constraints_in_descent() -> None:
    """Even losses: the code lets no objective rise, the paper only those with the largest r_k F_k."""
    G = np.array([[1.0, -0.2], [-0.2, 0.1]])
    losses, r = [1.0, 0.99], [1.0, 1.0]
    code, paper = (preference(G, losses, r, as_printed=printed) for printed in (False, True))
    assert code.mode == paper.mode == "descent"
    assert (G @ code.weights >= -1e-9).all()
    assert (G @ paper.weights)[1] < -1e-3 or (paper.weights != code.weights).any()


def test_a_proximal_step_makes_the_predicted_values_equal() -> None:
    rng = np.random.default_rng(0)
    J = rng.normal(size=(3, 8))
    r, F, step = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 0.7]), 0.05
    G = J @ J.T
    w = proximal(G, F, r, step=step)
    predicted = r * (F - step * G @ w)
    assert w.sum() == pytest.approx(1)
    assert (w >= 0).all()
    assert predicted[w > 1e-9] == pytest.approx(predicted.max(), rel=1e-6)
    # no other weights do better in the same measure: the largest predicted value and half the squared length
    rho = step / (w / (w / r).sum()).sum()

    def measure(v: np.ndarray) -> float:
        return float((r * (F - step * G @ v)).max() + (step**2) * v @ G @ v / (2 * rho))

    others = rng.dirichlet(np.ones(3), size=2000)
    assert min(map(measure, others)) >= measure(w) - 1e-9


def test_an_objective_without_a_preference_gets_no_weight() -> None:
    assert proximal(np.eye(3), [1.0, 2.0, 3.0], [1.0, 0.0, 1.0], step=0.1)[1] == 0.0


def test_who_stays_behind_is_owed_more_up_to_a_bound() -> None:
    owed = still_owed(np.zeros(2), np.array([np.e, 1.0]))
    assert owed == pytest.approx([0.05, -0.05])
    for _ in range(1000):
        owed = still_owed(owed, np.array([np.e, 1.0]))
    assert owed.tolist() == [2.0, -2.0]
    assert still_owed(np.zeros(2), np.zeros(2)).tolist() == [0.0, 0.0]


def test_a_linear_programs_settings_do_not_go_with_proximal() -> None:
    with pytest.raises(BadInput, match="leave them out, or set program = 'paper'"):
        FedCMOOPref(program="proximal", threshold=0.1)


def test_the_weights_are_optimal_for_random_problems() -> None:
    """Predicted values are equal where weights are positive, nowhere larger: all weight on the least r, too."""
    rng = np.random.default_rng(0)
    pair = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([1.3, 10.0]), np.array([1.0, 0.1])
    cases = [(*pair, step) for step in (0.85, 0.9, 1.0)]
    for _ in range(200):
        J = rng.normal(size=(int(rng.integers(2, 5)), 6)) * 10 ** rng.uniform(-1, 1)
        n = len(J)
        cases.append((J @ J.T, rng.exponential(size=n), 10 ** rng.uniform(-1.5, 0, n), 10 ** rng.uniform(-3, 1)))
    for G, F, r, step in cases:
        w = proximal(G, F, r, step=step)
        predicted = r * (F - step * G @ w)
        scale = max((r * F).max(), step * (r * np.abs(G @ w)).max())
        assert predicted[w > 1e-7] == pytest.approx(predicted.max(), abs=1e-5 * scale)
