"""Omega steps: within their bounds, no feasible Omega better; planted structure is found again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mocha_cases import solve
from scipy.optimize import minimize

from polyfed.algorithms.tasks.mocha import Mocha as Rounds
from polyfed.algorithms.tasks.regularisers import Clustered, Graphical, Matrix, Probabilistic, Regulariser
from polyfed.core.errors import NotFinite
from polyfed.tasks import MochaEstimator
from polyfed.work.linear.examples import Examples, as_examples
from polyfed.work.linear.losses import find

SHAPES = st.tuples(st.integers(2, 8), st.integers(1, 8), st.integers(0, 10_000))


def weights(shape: tuple[int, int, int]) -> Matrix:
    m, d, seed = shape
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(m, d)) * 10.0 ** rng.integers(-3, 3)
    W[rng.random(m) < 0.2] = 0  # tasks that have not answered
    return W * (rng.random() > 0.1)  # sometimes nothing has been learned yet


def feasible(m: int, k: float, top: float, rng: np.random.Generator) -> Matrix:
    """A random matrix with eigenvalues in [0, top] that sum to k."""
    q = rng.dirichlet(np.ones(m)) * k
    while q.max() > top:
        q = np.minimum(q, top)
        q += (k - q.sum()) * (top - q) / max((top - q).sum(), 1e-12)
    U = np.linalg.qr(rng.normal(size=(m, m)))[0]
    made: Matrix = (U * q) @ U.T
    return made


@given(SHAPES, st.integers(1, 8), st.sampled_from([1e-3, 0.1, 1.0]))
@settings(max_examples=60, deadline=None)
def test_the_clustered_step_is_feasible_and_best(shape: tuple[int, int, int], k: int, eta: float) -> None:
    W, m = weights(shape), shape[0]
    rule = Clustered(lam=1.0, eta=eta, clusters=min(k, m))
    omega = rule.step(W)
    q = np.linalg.eigvalsh(omega)
    assert q.min() >= -1e-9
    assert q.max() <= 1 + 1e-9
    assert omega.trace() == pytest.approx(min(k, m), rel=1e-7)
    assert np.array_equal(omega, omega.T)
    best, rng = rule.value(W, rule.mbar(omega)), np.random.default_rng(shape[2])
    for part in (1.0, 0.1, 0.01):
        other = (1 - part) * omega + part * feasible(m, min(k, m), 1.0, rng)
        assert rule.value(W, rule.mbar(other)) >= best * (1 - 1e-9)


@given(SHAPES)
@settings(max_examples=60, deadline=None)
def test_the_probabilistic_step_is_a_covariance_and_best(shape: tuple[int, int, int]) -> None:
    W, m = weights(shape), shape[0]
    rule = Probabilistic(lam=1.0, sigma=1e6, floor=1e-12)
    omega = rule.step(W)
    assert np.linalg.eigvalsh(omega).min() >= 0
    assert omega.trace() == pytest.approx(1)
    if shape[1] >= m and W.any():
        nuclear = np.linalg.svd(W, compute_uv=False).sum()
        assert rule.value(W, rule.mbar(omega)) == pytest.approx(nuclear**2, rel=1e-3)


def test_the_graphical_step_is_the_least_of_its_objective() -> None:
    W = np.random.default_rng(0).normal(size=(4, 20)) @ np.diag(np.ones(20))
    W[1] += W[0]
    rule = Graphical(lam=0.5, lam2=1.0, sigma=10.0)
    omega = rule.step(W)

    def value(A: Matrix) -> float:
        return rule.lam * float(np.vdot(A, W @ W.T)) + rule.alone(A, 20)

    assert np.linalg.eigvalsh(omega).min() > 0
    rng = np.random.default_rng(1)
    for size in (1e-1, 1e-2, 1e-3):
        E = rng.normal(size=(4, 4)) * size
        assert value(omega + (E + E.T) / 2) >= value(omega) - 1e-6 * abs(value(omega))


def grouped(signs: np.ndarray, seed: int = 0, n: int = 80, d: int = 12) -> tuple[list[Matrix], list[Matrix]]:
    """Tasks t with w_t = signs_t times its group's centre, plus a little."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(int(np.abs(signs).max()) + 1, d))
    W = [np.sign(s) * centres[abs(s)] + 0.2 * rng.normal(size=d) for s in signs]
    Xs = [rng.normal(size=(n, d)) for _ in signs]
    return Xs, [np.where(X @ w > 0, 1.0, -1.0) for X, w in zip(Xs, W, strict=True)]


RULES = [Clustered(), Probabilistic(), Graphical(lam2=10.0)]


@pytest.mark.parametrize("rule", RULES)
def test_a_task_that_never_answered_has_no_model_and_not_one_of_rounding(rule: Regulariser) -> None:
    """Its predictions would be the signs of what a decomposition leaves over, which is another on every machine."""
    V = np.random.default_rng(1).normal(size=(7, 5))
    V[[2, 5]] = 0
    omega = rule.start(7)
    for _ in range(3):
        W = rule.weights(V, rule.mbar(omega))
        omega = rule.step(W)
        assert W[[0, 1, 3, 4, 6]].all()
        assert not W[[2, 5]].any()


@pytest.mark.parametrize("rule", RULES)
def test_models_so_small_that_their_squares_are_zero_leave_a_positive_omega(rule: Regulariser) -> None:
    omega = rule.step(np.full((3, 4), 1e-165))
    assert np.linalg.eigvalsh(omega).min() >= 0
    assert omega.trace() > 0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_models_that_are_not_finite_are_a_sentence_and_what_rounds_are_repeated_for(
    rule: Regulariser, wrong: float
) -> None:
    W = np.ones((3, 4))
    W[1, 2] = wrong
    with pytest.raises(NotFinite, match="should be finite where Omega is fitted"):
        rule.step(W)


def test_related_tasks_have_a_sparse_precision() -> None:
    """Twenty-four nearly dependent models, with the default penalty."""
    group = np.arange(24) % 3
    Xs, ys = grouped(group + 1, n=60)
    model = MochaEstimator(regulariser="graphical", intercept=False, omega_every=5, omega_steps=3).fit(Xs, ys)
    assert np.linalg.eigvalsh(model.omega_).min() > 0
    tied = model.omega_ != 0
    same = group[:, None] == group
    assert tied[same].mean() > tied[~same].mean()


def test_clustered_recovers_planted_clusters() -> None:
    group = np.array([1, 1, 2, 3, 2, 3, 1, 2, 3])
    model = MochaEstimator(structure={"clusters": 3, "eta": 0.05}, lam=1.0, intercept=False, omega_steps=20).fit(
        *grouped(group, n=200)
    )
    together = np.abs(model.omega_)[group[:, None] == group]
    apart = np.abs(model.omega_)[group[:, None] != group]
    assert together.min() > 3 * apart.max()


def test_probabilistic_recovers_planted_signs() -> None:
    signs = np.array([1, -1, 1, -1, 2, -2, 2])
    model = MochaEstimator(regulariser="probabilistic", lam=0.05, intercept=False, omega_steps=20).fit(*grouped(signs))
    related = np.abs(signs)[:, None] == np.abs(signs)
    scale = np.sqrt(np.outer(model.omega_.diagonal(), model.omega_.diagonal()))
    found = model.omega_ / scale
    assert (np.sign(found[related]) == np.sign(np.outer(signs, signs))[related]).all()
    assert np.abs(found[related]).min() > 0.5 > 0.4 > np.abs(found[~related]).max()


def regression(m: int = 3, d: int = 6) -> list[Examples]:
    rng = np.random.default_rng(3)
    W = rng.normal(size=(m, d))
    Xs = [rng.normal(size=(30, d)) for _ in range(m)]
    return [as_examples(X, X @ w + 0.1 * rng.normal(size=30), find("squared")) for X, w in zip(Xs, W, strict=True)]


def by_hand(examples: list[Examples], penalty: Callable[[np.ndarray], float]) -> float:
    """min over W of the squared losses and a penalty of W's singular values, by a generic solver."""
    m, d = len(examples), examples[0].X.shape[1]

    def value(w: Matrix) -> float:
        W = w.reshape(m, d)
        loss = sum(((e.X @ row - e.y) ** 2).sum() / 2 for e, row in zip(examples, W, strict=True))
        return float(loss + penalty(np.linalg.svd(W, compute_uv=False)))

    start = np.concatenate([np.linalg.lstsq(e.X, e.y, rcond=None)[0] for e in examples])
    return float(minimize(value, start, method="BFGS", options={"gtol": 1e-6, "maxiter": 2000}).fun)


def test_the_probabilistic_alternation_reaches_the_joint_optimum() -> None:
    """min over Omega of tr(W^T Omega^-1 W) is the squared nuclear norm."""
    examples, rule = regression(), Probabilistic(lam=0.5, sigma=2.0, floor=1e-10)
    _, found = solve(examples, Rounds(loss="squared", regulariser=rule, epochs=20, omega_every=1), rounds=600, gap=0)
    best = by_hand(examples, lambda s: 0.5 * ((s**2).sum() / 4 + s.sum() ** 2))
    assert found["primal"] == pytest.approx(best, rel=1e-5)


def test_the_clustered_alternation_reaches_the_joint_optimum() -> None:
    examples, rule = regression(), Clustered(lam=0.5, eta=0.4, clusters=2)
    _, found = solve(examples, Rounds(loss="squared", regulariser=rule, epochs=20, omega_every=1), rounds=600, gap=0)
    best = by_hand(examples, lambda s: 0.5 * float((s**2 / (0.4 + rule._spectrum(np.sort(s)[::-1]))).sum()))
    assert found["primal"] == pytest.approx(best, rel=1e-5)
