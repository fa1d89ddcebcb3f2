"""The estimator: scikit-learn's own weights for one task, dense and sparse alike, selection by cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from polyfed.core.errors import BadInput
from polyfed.tasks import MochaCV, MochaEstimator
from polyfed.tasks.selection import folds

EXACT: dict[str, Any] = {"tol": 1e-12, "max_iter": 5000, "epochs": 50}


def rows(n: int = 60, d: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    z = X @ rng.normal(size=d) + 0.7 * rng.normal(size=n) + 0.5
    return X, np.where(z > 0, 1.0, -1.0), z


def many(m: int = 5, **kw: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    made = [rows(seed=t, **kw) for t in range(m)]
    return [X for X, _, _ in made], [y for _, y, _ in made]


def test_one_task_is_linear_svc() -> None:
    X, y, _ = rows()
    ours = MochaEstimator(regulariser="independent", lam=0.4, **EXACT).fit([X], [y])
    svc = LinearSVC(loss="hinge", C=1 / 0.8, dual=True, tol=1e-10, max_iter=1_000_000).fit(X, y)
    assert np.allclose(ours.coef_, svc.coef_, atol=1e-4)
    assert np.allclose(ours.intercept_, svc.intercept_, atol=1e-4)


def test_one_task_is_ridge() -> None:
    X, _, z = rows()
    ours = MochaEstimator(loss="squared", regulariser="independent", lam=0.4, intercept=False, **EXACT).fit([X], [z])
    assert np.allclose(ours.coef_[0], Ridge(alpha=0.8, fit_intercept=False).fit(X, z).coef_, atol=1e-4)


def test_one_task_is_logistic_regression() -> None:
    X, y, _ = rows()
    ours = MochaEstimator(loss="logistic", regulariser="independent", lam=0.4, intercept=False, **EXACT).fit([X], [y])
    theirs = LogisticRegression(C=1 / 0.8, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    assert np.allclose(ours.coef_, theirs.coef_, atol=1e-4)


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("loss", ["hinge", "squared"])
def test_sparse_is_dense(loss: str, standardise: bool) -> None:
    Xs, ys = many()
    Xs = [np.where(np.abs(X) < 0.7, 0, X) for X in Xs]
    settings: dict[str, Any] = {
        "loss": loss,
        "regulariser": "mean",
        "tol": 1e-6,
        "standardise": standardise,
        "max_iter": 100,
    }
    if standardise:  # sparse features are not centred: nor are dense ones without an intercept
        settings["intercept"] = False
    dense = MochaEstimator(**settings).fit(Xs, ys)
    thin = MochaEstimator(**settings).fit([sparse.csr_matrix(X) for X in Xs], ys)
    assert np.allclose(dense.coef_, thin.coef_, atol=1e-8)
    assert all((a == b).all() for a, b in zip(dense.predict(Xs), thin.predict(Xs), strict=True)) or loss == "squared"


def test_standardising_is_the_same_model_on_other_units() -> None:
    Xs, ys = many()
    units = np.array([1e-3, 1, 1e3, 5, 1, 10]), np.array([100, 0, -3, 0, 1, 2])
    one = MochaEstimator(standardise=True, tol=1e-7, max_iter=5000).fit(Xs, ys)
    other = MochaEstimator(standardise=True, tol=1e-7, max_iter=5000).fit([X * units[0] + units[1] for X in Xs], ys)
    assert np.allclose(one.coef_, other.coef_ * units[0], atol=1e-4)
    scaled = other.decision_function([X * units[0] + units[1] for X in Xs])
    assert np.allclose(np.concatenate(one.decision_function(Xs)), np.concatenate(scaled), atol=1e-3)


def test_threads_change_nothing() -> None:
    Xs, ys = many()
    assert np.array_equal(MochaEstimator(n_jobs=2).fit(Xs, ys).coef_, MochaEstimator().fit(Xs, ys).coef_)


def test_it_is_a_scikit_learn_estimator() -> None:
    model = MochaEstimator(lam=0.3, structure={"clusters": 3})
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(lam=2.0).lam == 2.0
    Xs, ys = many()
    fitted = model.fit(Xs, ys)
    assert fitted is model
    assert model.coef_.shape == (5, 6)
    assert model.omega_.shape == (5, 5)
    assert model.gap_ <= 1e-3
    assert model.score(Xs, ys) > 0.8


def test_selection_holds_every_row_out_once_and_finds_a_good_strength() -> None:
    y = np.array([1] * 12 + [-1] * 23)
    fold = folds(y, 5, True, 0, 0)
    assert sorted(np.bincount(fold)) == [7] * 5
    assert np.bincount(fold[:12], minlength=5).max() - np.bincount(fold[:12], minlength=5).min() <= 1
    Xs, ys = many()
    chosen = MochaCV(MochaEstimator(tol=1e-2), lams=(1e-2, 0.5, 1e4)).fit(Xs, ys)
    assert chosen.lam_ == 0.5
    assert chosen.scores_.argmax() == 1
    assert chosen.predict(Xs)[0].shape == (60,)
    assert clone(chosen).get_params()["lams"] == (1e-2, 0.5, 1e4)


def test_labels_zero_and_one_come_back_with_a_note() -> None:
    Xs, ys = many()
    other = MochaEstimator().fit(Xs, [(y > 0).astype(int) for y in ys])
    assert set(np.concatenate(other.predict(Xs))) == {0, 1}
    assert "read as -1 and 1" in other.notes_[0]
    assert np.array_equal(other.coef_, MochaEstimator().fit(Xs, ys).coef_)


def test_a_task_with_one_class_and_rows_of_zeros_are_handled() -> None:
    Xs, ys = many()
    ys[1][:] = 1
    Xs[2][:5] = 0
    for loss in ("hinge", "smoothed-hinge", "logistic", "squared"):
        model = MochaEstimator(loss=loss, intercept=False, tol=1e-6, max_iter=3000).fit(Xs, ys)
        assert model.gap_ <= 1e-6
        assert loss == "squared" or model.notes_ == ["Task 1 has one class only."]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda Xs, ys: ys[2].__setitem__(0, 0.5), "Labels should be classes"),
        (lambda Xs, ys: Xs[3].__setitem__((0, 0), np.nan), "Task 3: Features and targets should be finite"),
        (lambda Xs, ys: (Xs.__setitem__(1, Xs[1][:0]), ys.__setitem__(1, ys[1][:0])), "Task 1: .*at least one example"),
        (lambda Xs, ys: Xs.__setitem__(1, Xs[1][:5]), "Task 1: .*one target a row"),
        (lambda Xs, ys: Xs.__setitem__(1, Xs[1][:, :3]), "same features"),
        (lambda Xs, ys: Xs.pop(), "one X and one y per task"),
    ],
)
def test_bad_input_is_a_sentence(change: Any, why: str) -> None:
    Xs, ys = many()
    change(Xs, ys)
    with pytest.raises(BadInput, match=why):
        MochaEstimator().fit(Xs, ys)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"loss": "hing"}, "Did you mean 'hinge'"),
        ({"regulariser": "cluster"}, "Did you mean 'clustered'"),
        ({"lam": -1}, "structure.lam"),
        ({"structure": {"clusters": 9}}, "at most the 5 tasks"),
        ({"structure": {"cluster": 2}}, "Did you mean 'clusters'"),
        ({"regulariser": "fixed", "structure": {"omega": [[1.0, 0], [0, 1]]}}, "5 x 5 for 5 tasks"),
        ({"regulariser": "fixed", "structure": {"omega": (-np.eye(5)).tolist()}}, "symmetric and positive"),
    ],
)
def test_bad_settings_are_sentences(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        MochaEstimator(**settings).fit(*many())
