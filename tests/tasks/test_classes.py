"""Classes of any names and number, and their probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hospitals import FEATURES, as_lists, hospitals
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from polyfed.core.errors import BadInput
from polyfed.tasks import MochaEstimator


def test_probabilities_of_one_task_are_those_of_logistic_regression() -> None:
    frame, y = hospitals(m=1, n=120)
    X = frame[FEATURES].to_numpy()
    ours = MochaEstimator(loss="logistic", lam=0.4, intercept=False, tol=1e-10, max_iter=5000).fit(X, y)
    theirs = LogisticRegression(C=1 / 0.8, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    assert ours.classes_.tolist() == ["fine", "ill"]


def test_several_classes_of_one_task_are_one_against_the_rest() -> None:
    frame, y = hospitals(m=1, n=200, classes=3)
    X = frame[FEATURES].to_numpy()
    ours = MochaEstimator(loss="logistic", lam=0.4, intercept=False, tol=1e-10, max_iter=5000).fit(X, y)
    each = LogisticRegression(C=1 / 0.8, fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs = OneVsRestClassifier(each).fit(X, y)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    assert ours.coef_.shape == (1, 3, 4)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_several_classes_in_many_tasks(loss: str) -> None:
    frame, y = hospitals(classes=3, n=30)
    model = MochaEstimator(task="hospital", loss=loss).fit(frame, y)
    assert model.coef_.shape == (6, 3, 4)
    assert model.decision_function(frame).shape == (180, 3)
    assert model.omega_.shape == (6, 6)
    assert model.gap_ <= 1e-3
    assert model.score(frame, y) > 0.85
    lists = MochaEstimator(loss=loss).fit(*as_lists(frame, y))
    assert np.array_equal(lists.coef_, model.coef_)
    assert lists.score(*as_lists(frame, y)) > 0.85


def test_the_classes_share_one_omega_that_is_best_for_all() -> None:
    """Turning the labels' names round changes nothing but the order of the models."""
    frame, y = hospitals(classes=3)
    how: dict[str, Any] = {"task": "hospital", "loss": "logistic", "regulariser": "probabilistic"}
    settings = {**how, "tol": 1e-3, "omega_steps": 6}
    model = MochaEstimator(**settings).fit(frame, y)
    turned = np.array([{"fine": "c", "ill": "b", "worse": "a"}[one] for one in y])
    other = MochaEstimator(**settings).fit(frame, turned)
    assert np.allclose(model.coef_, other.coef_[:, ::-1], atol=0.02)
    assert np.allclose(model.omega_, other.omega_, atol=1e-3)
    best = model.rule().step(np.concatenate([model.coef_, model.intercept_[..., None]], axis=2).reshape(6, -1))
    assert np.allclose(model.omega_, best, atol=1e-2)
    each = [MochaEstimator(**settings).fit(frame, y == one).omega_ for one in model.classes_]
    assert all(np.abs(omega - model.omega_).max() > 0.02 for omega in each)


def test_only_the_logistic_loss_has_probabilities() -> None:
    frame, y = hospitals()
    model = MochaEstimator(task="hospital").fit(frame, y)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError) as error:
        _ = model.predict_proba
    assert "loss='logistic'" in str(error.value.__cause__)
    assert "CalibratedClassifierCV" in str(error.value.__cause__)
    lists = MochaEstimator(loss="logistic").fit(*as_lists(frame, y))
    assert all(np.allclose(p.sum(1), 1) for p in lists.predict_proba(as_lists(frame, y)[0]))


@pytest.mark.parametrize(("label", "why"), [("fine", "one class, 'fine'"), (0.25, "Unknown label type: continuous")])
def test_labels_that_are_no_classes_are_a_sentence(label: str | float, why: str) -> None:
    frame, y = hospitals()
    labels = np.full(len(y), label) if label == "fine" else np.linspace(0, 1, len(y))
    with pytest.raises(BadInput, match=why):
        MochaEstimator(task="hospital").fit(frame, labels)


def test_numbers_are_judged_by_r2() -> None:
    frame, _ = hospitals()
    target = frame["age"] * 3 + frame["hospital"].str[1:].astype(float)
    model = MochaEstimator(task="hospital", loss="squared", lam=0.01).fit(frame, target)
    residual = target - model.predict(frame)
    assert model.score(frame, target) == pytest.approx(1 - (residual**2).mean() / target.var(ddof=0))
    assert model.score(frame, target) > 0.95
