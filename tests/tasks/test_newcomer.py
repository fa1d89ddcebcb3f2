"""A new task from its few rows: the best for problem (1) with the others as they are, and better than alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hospitals import as_lists, hospitals
from scipy import sparse
from scipy.optimize import minimize

from polyfed.core.errors import BadInput
from polyfed.tasks import MochaEstimator

GROUPS = np.random.default_rng(7).normal(size=(3, 15))


def rows(w: Any, n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, len(w)))
    return X, np.where(X @ w + 0.3 * rng.normal(size=n) > 0, 1, -1)


def related(kinds: int, m: int = 12, n: int = 60) -> tuple[list[Any], list[Any]]:
    """Tasks in some groups, nobody quite like another."""
    rng = np.random.default_rng(0)
    made = [rows(GROUPS[t % kinds] + 0.2 * rng.normal(size=15), n, 100 + t) for t in range(m)]
    return [X for X, _ in made], [y for _, y in made]


@pytest.mark.parametrize(
    ("regulariser", "structure", "kinds"),
    [("mean", {}, 1), ("clustered", {"clusters": 3, "eta": 0.1}, 3), ("probabilistic", {}, 3)],
)
def test_a_new_task_does_better_with_the_others_than_alone(regulariser: str, structure: Any, kinds: int) -> None:
    """Eight rows of 15 features, for six new tasks in turn; alone has whatever strength serves it best afterwards."""
    model = MochaEstimator(regulariser=regulariser, structure=structure, lam=1.0, tol=0.01).fit(*related(kinds))
    together, alone = [], []
    for t in range(6):
        X, y = rows(GROUPS[t % kinds] + 0.2 * np.random.default_rng(t).normal(size=15), 508, t)
        new = copy.deepcopy(model).add_task(X[:8], y[:8])
        assert np.allclose(new.coef_[:-1], model.coef_)
        together.append(np.mean(np.sign(X[8:] @ new.coef_[-1] + new.intercept_[-1]) == y[8:]))
        each = [MochaEstimator(lam=lam, tol=0.01).fit(X[:8], y[:8]) for lam in (0.01, 0.1, 1.0, 10.0)]
        alone.append([one.score(X[8:], y[8:]) for one in each])
    assert np.mean(together) > np.mean(alone, axis=0).max() + 0.05


@pytest.mark.parametrize("regulariser", ["independent", "mean", "clustered", "probabilistic", "graphical"])
def test_no_other_weights_and_omega_are_better_for_the_whole_problem(regulariser: str) -> None:
    """A generic solver over w, with the best Omega for each w, finds nothing lower."""
    Xs, ys = related(3, m=4, n=30)
    Xs = [X[:, :4] for X in Xs]
    X, y = Xs[-1][:10], ys[-1][:10]
    steps = 300 if regulariser in ("clustered", "probabilistic") else 10
    model = MochaEstimator(loss="logistic", regulariser=regulariser, intercept=False, tol=1e-6, max_iter=50)
    model.fit(Xs[:3], ys[:3]).set_params(tol=1e-9, omega_steps=steps).add_task(X, y)
    rule, others = model.rule(), model.coef_[:-1]

    def value(w: Any) -> float:
        W = np.vstack([others, w])
        omega = rule.step(W) if rule.learns else rule.start(4)
        return float(np.logaddexp(0, -y * (X @ w)).sum() + rule.value(W, rule.mbar(omega)) + rule.alone(omega, 4))

    ours = value(model.coef_[-1])
    for start in (model.coef_[-1], np.full(4, 0.1)):
        assert ours <= minimize(value, start).fun + 1e-3
    assert ours < value(np.zeros(4)) - 0.1


def test_a_new_task_near_the_mean_has_the_weights_of_the_documented_formula() -> None:
    Xs, ys = related(1, m=5)
    model = MochaEstimator(loss="squared", regulariser="mean", lam=0.7, intercept=False, tol=1e-12, max_iter=5000)
    model.fit(Xs, ys)
    X, y = rows(GROUPS[0], 6, 1)
    lam1 = lam2 = 0.7
    mu = lam1 * 5 / (lam1 * 5 + lam2 * 6) * model.coef_.mean(0)
    over_s = 2 * (lam1 * 5 / 6 + lam2)
    w = np.linalg.solve(X.T @ X + over_s * np.eye(15), X.T @ y + over_s * mu)
    assert np.allclose(model.add_task(X, y).coef_[-1], w, atol=1e-5)


def test_without_ties_a_new_task_is_one_alone() -> None:
    Xs, ys = related(1, m=3)
    settings: dict[str, Any] = {"regulariser": "independent", "tol": 1e-7, "max_iter": 1000}
    model = MochaEstimator(**settings).fit(Xs[:2], ys[:2]).add_task(sparse.csr_matrix(Xs[2]), ys[2])
    assert np.allclose(model.coef_, MochaEstimator(**settings).fit(Xs, ys).coef_, atol=1e-3)
    assert np.mean(model.predict(Xs)[2] == ys[2]) > 0.9


@pytest.mark.parametrize("scale", ["sum", "mean"])
def test_scaled_features_and_several_classes_are_added_too(scale: str) -> None:
    frame, y = hospitals(classes=3, n=25)
    old = (frame["hospital"] != "H5").to_numpy()
    model = MochaEstimator(task="hospital", standardise=True, lam=0.01, loss_scale=scale, tol=0.01)
    model.fit(frame[old], y[old]).add_task(frame[~old], y[~old])
    assert model.tasks_.tolist() == [f"H{t}" for t in range(6)]
    assert model.coef_.shape == (6, 3, 4)
    assert model.omega_.shape == (6, 6)
    assert model.score(frame[~old], y[~old]) > 0.85


def test_several_tasks_can_be_added_by_their_column() -> None:
    frame, y = hospitals()
    old = frame["hospital"].isin(["H0", "H2", "H4"]).to_numpy()
    longer = frame.assign(hospital=frame["hospital"].where(old, "another " + frame["hospital"]))
    model = MochaEstimator(task="hospital").fit(longer[old], y[old]).add_task(longer[~old], y[~old])
    assert model.tasks_.tolist() == ["H0", "H2", "H4", "another H1", "another H3", "another H5"]
    assert model.score(longer, y) > 0.9


def test_a_long_name_among_short_ones_is_kept_whole() -> None:
    frame, y = hospitals(m=3)
    names = frame.pop("hospital").to_numpy().astype("U2")
    table = np.column_stack([names, frame.to_numpy().round(3).astype("U6")])  # an array of texts
    model = MochaEstimator(task=0).fit(table, y)
    long = np.column_stack([np.full(9, "a longer name"), table[:9, 1:]])
    model.add_task(long, y[:9])
    assert model.tasks_.tolist() == ["H0", "H1", "H2", "a longer name"]
    assert model.score(long, y[:9]) > 0.7


def test_what_cannot_be_added_is_a_sentence() -> None:
    frame, y = hospitals()
    model = MochaEstimator(task="hospital").fit(frame, y)
    new = frame.assign(hospital="new")
    with pytest.raises(BadInput, match=r"should be new. Found 'H0', 'H1', 'H2', 'H3', 'H4', fitted"):
        model.add_task(frame, y)
    with pytest.raises(BadInput, match="all be numbers, or all be texts"):
        model.add_task(frame.assign(hospital=7), y)
    with pytest.raises(BadInput, match=r"among the 2 classes. Found \['worse'\]"):
        model.add_task(new[:2], ["ill", "worse"])
    with pytest.raises(ValueError, match="feature names"):
        model.add_task(new.drop(columns="age"), y)
    Xs, ys = as_lists(frame, y)
    with pytest.raises(BadInput, match="one task: set task="):
        MochaEstimator().fit(Xs[0], ys[0]).add_task(Xs[1], ys[1])
    with pytest.raises(BadInput, match=r"rows of 4 features\. Found shape"):
        MochaEstimator().fit(Xs, ys).add_task(Xs[1][:, :2], ys[1])
    sparse_weights = MochaEstimator(regulariser="graphical", structure={"lam1": 0.1}, max_iter=2).fit(Xs, ys)
    with pytest.raises(BadInput, match="Found lam1 > 0"):
        sparse_weights.add_task(Xs[0], ys[0])


def test_an_omega_of_ones_own_needs_a_row_for_the_new_task() -> None:
    Xs, ys = as_lists(*hospitals(m=3))
    model = MochaEstimator(regulariser="fixed", structure={"omega": np.eye(2).tolist()}).fit(Xs[:2], ys[:2])
    with pytest.raises(BadInput, match="3 x 3 for 3 tasks"):
        model.add_task(Xs[2], ys[2])
    wider = np.array([[1.0, 0, 0], [0, 1, -0.99], [0, -0.99, 1]])
    model.set_params(structure={"omega": wider.tolist(), "lam2": 0.0}, lam=100.0).add_task(Xs[2], ys[2])
    assert np.allclose(model.coef_[2], model.coef_[1], atol=0.2 * np.linalg.norm(model.coef_[1]))
