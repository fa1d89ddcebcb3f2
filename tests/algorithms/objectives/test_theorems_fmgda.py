"""What the theorems of Yang et al. 2023 ("Federated Multi-Objective Learning") say, where the constants are known.

Their eta is that of updates divided by K, so that server_lr = eta / (K lr).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracles import (
    DENT_L,
    DENT_SLOPE,
    Array,
    Iterates,
    column,
    dent,
    exponent,
    hessian,
    points,
    quadratic,
    shortest,
)  # fmt: skip
from polyfed import FMGDA, FSMGDA, Callback, train
from polyfed.algorithms.objectives.fmgda import random_round

# smooth, not convex


def dents() -> tuple[Array, Array]:
    """Centres of three clients' two objectives in R^4, and a start within both slopes."""
    rng = np.random.default_rng(0)
    apart = np.array([-0.4, 0.4])[:, None] * np.ones(4)
    return apart + 0.3 * rng.normal(size=(3, 1, 2, 4)), np.array([1.5, -1.5, 1.0, 2.0])


def own_stationarity(T: int, lr: float, K: int, eta: float) -> Array:
    """|d-bar_t|^2 of T rounds."""
    centres, start = dents()
    problem, federation = points([dent, dent], centres, start)
    method = FMGDA(lr=lr, local_steps=K, server_lr=eta / (K * lr))
    asked = {"own_stationarity": 1, "every": T}
    return column(train(problem, federation, method, rounds=T, evaluate=asked).history, "own_stationarity") ** 2


def test_theorem_1_bounds_the_stationarity_of_smooth_objectives() -> None:
    """Theorem 1: min_t |d-bar_t|^2 <= 16 (f_s^0 - f_s^min) / (T eta) + 16 eta_L^2 K^2 L^2 G^2 (1 + S^2) / eta."""
    T, lr, K, S, eta = 40, 0.01, 3, 2, 3 / (2 * (1 + DENT_L))
    centres, start = dents()
    found = own_stationarity(T, lr, K, eta)
    f0 = min(float(dent(torch.from_numpy(start - centres[:, 0, s])).mean()) for s in range(S))  # f_s^min >= 0
    delta = 16 * lr**2 * K**2 * DENT_L**2 * (4 * DENT_SLOPE**2) * (1 + S**2) / eta
    bound = 16 * f0 / (np.arange(1, T + 1) * eta) + delta
    assert (np.minimum.accumulate(found) <= bound).all()
    assert found.min() < 0.1 * found[0]


def test_corollary_2_one_over_t_with_a_local_rate_of_one_over_root_t() -> None:
    """Corollary 2: with eta_L = O(1/sqrt T), (1/T) sum_t |d-bar_t|^2 = O(1/T)."""
    horizons = (8, 24, 72)
    found = [own_stationarity(T, 0.5 / np.sqrt(T), 2, 0.5).mean() for T in horizons]
    assert -1.2 < exponent(horizons, found) < -0.85


# strongly convex

MU, L = 0.4, 1.0
HESSIANS = [hessian([MU, 0.5, 0.7, L], seed) for seed in (1, 2)]


class Strong:
    """Two quadratics with eigenvalues between MU and L at two clients, of 16 rows each."""

    def __init__(self, noise: float = 0.0) -> None:
        rng = np.random.default_rng(3)
        apart = np.array([-1.0, 1.0])[:, None] * rng.normal(size=4)
        clients = 0.3 * rng.normal(size=(2, 1, 2, 4))
        self.centres = apart + clients + noise * rng.normal(size=(2, 16, 2, 4))
        self.start = 2 * rng.normal(size=4)

    def values(self, x: Array) -> Array:
        """f_s(x) but for a constant."""
        z = x - self.centres.mean((0, 1))
        return np.array([z[s] @ A @ z[s] / 2 for s, A in enumerate(HESSIANS)])

    def stationarity(self, x: Array) -> float:
        """|J w*|^2: of the order of Delta_Q where objectives are smooth and strongly convex, and it needs no x_*."""
        z = x - self.centres.mean((0, 1))
        J = np.stack([A @ z[s] for s, A in enumerate(HESSIANS)])
        return float(np.sum((shortest(J) @ J) ** 2))

    def run(self, method: Any, rounds: int, **evaluate: int) -> tuple[list[dict[str, Any]], list[Array]]:
        problem, federation = points([quadratic(A) for A in HESSIANS], self.centres, self.start)
        iterates = Iterates(self.start)
        result = train(
            problem, federation, method, rounds=rounds, evaluate={"every": rounds, **evaluate}, callbacks=[iterates]
        )
        return result.history, iterates.x


def output_weights(T: int, eta: float) -> Array:
    """w_t = (1 - mu eta / 2)^(1 - t), normalised."""
    w = (1 - MU * eta / 2) ** (1.0 - np.arange(1, T + 1))
    return np.asarray(w / w.sum())


def test_theorem_3_linear_decay_with_one_local_step() -> None:
    """Theorem 3, Corollary 4 with K = 1: Delta_Q = O(exp(-mu T)), and the printed bound for the weighted output."""
    problem, eta = Strong(), 1 / (2 * L + MU)
    history, x = problem.run(FMGDA(lr=eta, local_steps=1), 120)
    lam = column(history, "weights")
    # x_* is the run's own limit: another Pareto point makes the sum negative
    gaps = np.array([w @ (problem.values(a) - problem.values(x[-1])) for w, a in zip(lam, x[:-1], strict=True)])
    first = np.arange(40)
    assert (gaps[first] > 0).all()
    fit = np.polyfit(first, np.log(gaps[first]), 1, full=True)
    assert fit[0][0] < -eta * MU / 2
    assert fit[1][0] / len(first) < 0.1  # a line
    far = np.sum((x[0] - x[-1]) ** 2)
    for T in range(int(np.ceil(1 / (MU * eta))), 80):
        assert output_weights(T, eta) @ gaps[:T] <= far * MU * np.exp(-eta * MU * T / 2)


def test_theorem_3_several_local_steps_stall_at_their_drift() -> None:
    """Theorem 3's delta = O(eta_L^2 K^2): |J w*| stalls at O(eta_L K), which vanishes with eta_L."""
    problem, eta = Strong(), 3 / (2 * (1 + L))

    def floor(lr: float, K: int) -> float:
        method = FMGDA(lr=lr, local_steps=K, server_lr=eta / (K * lr))
        history, _ = problem.run(method, 25, stationarity=25)
        return float(history[-1]["stationarity"])

    assert exponent((0.2, 0.05), [floor(0.2, 4), floor(0.05, 4)]) == pytest.approx(1, abs=0.3)
    few, many = floor(0.1, 2), floor(0.1, 6)
    assert exponent((1, 5), (few, many)) == pytest.approx(1, abs=0.3)
    assert floor(0.1, 1) < 0.05 * few


# stochastic gradients


def test_theorem_7_the_noise_floor_shrinks_with_eta() -> None:
    """Theorem 7's delta has a term of order eta: with minibatches |J w*|^2 ends there, with full batches at nothing."""
    problem = Strong(noise=1.5)

    def floor(eta: float, batch_size: int, rounds: int) -> float:
        _, x = problem.run(FSMGDA(lr=eta, local_steps=1, batch_size=batch_size), rounds)
        return float(np.mean([problem.stationarity(a) for a in x[rounds // 2 :]]))

    large, small = floor(0.4, 1, 60), floor(0.1, 1, 120)
    assert small < 0.5 * large
    assert floor(0.4, 4, 60) < 0.5 * large  # Figure 1(a): larger batches
    assert floor(0.4, 0, 60) < 0.05 * small


def test_corollary_8_one_over_t_up_to_logarithms() -> None:
    """Corollary 8: eta = Theta(log(max(1, mu^2 T)) / (mu T)), eta_L = O(1/sqrt T), beta = O(eta): error O~(1/T).

    The constant of Theta is 2: with 1, the first term of (88), exp(-eta mu T / 2), were of order 1/sqrt T. beta falls
    with the batch size, which is therefore in inverse proportion to eta.
    """
    problem, horizons, found = Strong(noise=1.5), (20, 60, 180), []
    for T in horizons:
        eta = 2 * np.log(max(1, MU**2 * T)) / (MU * T)
        lr = 0.2 / np.sqrt(T)
        method = FSMGDA(lr=lr, local_steps=2, batch_size=round(0.3 / eta), server_lr=eta / (2 * lr))
        _, x = problem.run(method, T)
        found.append(output_weights(T, eta) @ [problem.stationarity(a) for a in x[1:]])
    assert exponent(horizons, found) < -0.8


def test_corollary_6_one_over_root_t_without_convexity() -> None:
    """Corollary 6: eta = O(1/sqrt T), eta_L = O(T^(-1/4)), beta = O(eta): min_t |d-bar_t|^2 = O(1/sqrt T)."""
    centres, start = dents()
    noisy = centres + np.random.default_rng(1).normal(size=(3, 12, 2, 4)) / 2
    horizons, found = (9, 36, 100), []
    for T in horizons:
        problem, federation = points([dent, dent], noisy, start)
        eta, lr = 1.5 / np.sqrt(T), 0.1 / T**0.25
        method = FSMGDA(lr=lr, local_steps=2, batch_size=round(np.sqrt(T)), server_lr=eta / (2 * lr))
        history = train(problem, federation, method, rounds=T, evaluate={"own_stationarity": 1, "every": T}).history
        found.append(np.mean(column(history, "own_stationarity") ** 2))  # the mean bounds the minimum
    assert exponent(horizons, found) < -0.4


# local steps save rounds


class Until(Callback):
    """Stops when every objective's loss is below a target."""

    def __init__(self, target: float) -> None:
        self.target = target

    def on_evaluation(self, run: Any, line: Any) -> None:
        if max(line["losses"].values()) < self.target:
            run.stop()


def test_table_2_more_local_steps_need_fewer_rounds() -> None:
    """Table 2: rounds to a loss of 1e-2 fall nearly in proportion to K, here where one point is best for both tasks."""
    start, rounds = np.array([2.0, -1.0, 1.0, 2.0]), {}
    for K in (1, 5, 10):
        problem, federation = points([quadratic(A) for A in HESSIANS], np.zeros((2, 3, 2, 4)), start)
        method = FMGDA(lr=0.1, local_steps=K)
        rounds[K] = len(train(problem, federation, method, rounds=100, callbacks=[Until(1e-2)]).history)
    assert rounds[1] < 100
    for K in (5, 10):
        assert rounds[1] / rounds[K] == pytest.approx(K, rel=0.3)


# the output


@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_the_law_of_the_random_output(mu: float) -> None:
    """Theorems 3 and 7: x_t is output with a chance in proportion to w_t = (1 - mu eta / 2)^(1 - t)."""
    T, eta, draws, rng = 6, 0.5, 5_000, np.random.default_rng(0)
    expected = np.array([(1 - mu * eta / 2) ** (1.0 - t) for t in range(1, T + 1)])
    expected *= draws / expected.sum()
    found = np.bincount([random_round(T, mu, eta, rng) for _ in range(draws)], minlength=T + 1)
    assert found[0] == 0
    assert np.sum((found[1:] - expected) ** 2 / expected) < 20.5  # chi-squared, 5 degrees of freedom: one in a thousand


def test_the_output_is_one_of_the_iterates() -> None:
    """And the rounds themselves go on as if the last were wanted."""
    problem, drawn = Strong(), set()
    _, x = problem.run(FMGDA(lr=0.3, local_steps=1), 6)
    for seed in range(8):
        start, federation = points([quadratic(A) for A in HESSIANS], problem.centres, problem.start)
        method = FMGDA(lr=0.3, local_steps=1, output="random")
        w = train(start, federation, method, rounds=6, seed=seed).model.get_parameter("w").detach().numpy()
        drawn |= {t for t in range(1, 7) if np.array_equal(w, x[t])}
    assert len(drawn) > 2
