"""scikit-learn's tools over the estimator: its own checks, searches, pipelines, folds."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hospitals import FEATURES, as_lists, hospitals
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from polyfed.core.errors import BadInput
from polyfed.tasks import MochaEstimator

LEFT_OUT = {"check_array_api_input": "runs only where the environment asks scipy for array-API support"}


def checks() -> Iterator[Any]:
    """Those of scikit-learn for a table without `task`: one task. Ten rounds are enough, and quick."""
    for loss in ("hinge", "logistic", "squared"):
        for estimator, check in estimator_checks_generator(MochaEstimator(loss=loss, max_iter=10)):
            name = check.func.__name__
            if name not in LEFT_OUT and (loss != "logistic" or "class" in name or "proba" in name):
                yield pytest.param(estimator, check, id=f"{loss}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
@pytest.mark.filterwarnings("default")
def test_scikit_learns_own_checks_pass(estimator: Any, check: Callable[[Any], None]) -> None:
    settings = estimator.get_params()
    check(estimator)  # raises where it fails
    assert estimator.get_params() == settings


def test_the_loss_says_what_kind_of_estimator_it_is() -> None:
    assert is_classifier(MochaEstimator(task="hospital"))
    assert is_regressor(MochaEstimator(loss="squared"))
    assert not is_classifier(MochaEstimator(loss="squared"))
    assert not hasattr(MochaEstimator(loss="squared"), "decision_function")


def test_grid_search_scores_each_task_by_its_own_held_out_rows() -> None:
    frame, y = hospitals()
    folds = KFold(3, shuffle=True, random_state=0)
    lams = [0.1, 1000.0]
    search = GridSearchCV(MochaEstimator(task="hospital", tol=0.05), {"lam": lams}, cv=folds).fit(frame, y)
    by_hand = []
    for lam in lams:
        scores = []
        for train, test in folds.split(frame):
            (Xs, ys), new = as_lists(frame.iloc[train], y[train]), as_lists(frame.iloc[test], y[test])
            model = MochaEstimator(lam=lam, tol=0.05).fit(Xs, ys)
            scores.append(np.mean(np.concatenate(model.predict(new[0])) == np.concatenate(new[1])))
        by_hand.append(np.mean(scores))
    assert np.allclose(search.cv_results_["mean_test_score"], by_hand)
    assert search.best_params_ == {"lam": 0.1}
    assert search.predict(frame).shape == y.shape


def pipeline(passed: Any) -> Pipeline:
    """Features scaled, the hospital passed on, in the last column."""
    prepare = ColumnTransformer([("scaled", StandardScaler(), FEATURES), ("task", passed, ["hospital"])])
    return make_pipeline(prepare, MochaEstimator(task=-1, tol=0.01))


@pytest.mark.parametrize("passed", ["passthrough", OrdinalEncoder()])
def test_a_pipeline_scales_the_features_and_passes_the_task(passed: Any) -> None:
    frame, y = hospitals()
    frame[FEATURES] = frame[FEATURES] * [1.0, 60, 0.01, 5] + [50, 80, 0, 3]
    scaled = frame.copy()
    scaled[FEATURES] = StandardScaler().fit_transform(frame[FEATURES])
    made = pipeline(passed).fit(frame, y)
    by_hand = MochaEstimator(task="hospital", tol=0.01).fit(scaled, y)
    assert np.allclose(made[-1].coef_, by_hand.coef_, atol=1e-8)
    assert np.array_equal(made.predict(frame), by_hand.predict(scaled))
    assert cross_val_score(made, frame, y, cv=3).mean() > 0.85


def test_a_pipeline_of_tables_finds_the_task_by_its_name() -> None:
    frame, y = hospitals()
    prepare = ColumnTransformer(
        [("scaled", StandardScaler(), FEATURES)], remainder="passthrough", verbose_feature_names_out=False
    )
    made = make_pipeline(prepare, MochaEstimator(task="hospital", tol=0.01)).set_output(transform="pandas")
    search = GridSearchCV(made, {"mochaestimator__lam": [0.1, 1.0]}, cv=StratifiedKFold(3)).fit(frame, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_[-1].feature_names_in_.tolist() == [*FEATURES, "hospital"]
    assert search.score(frame, y) > 0.9


def test_folds_may_be_cut_so_that_every_task_is_in_each() -> None:
    frame, y = hospitals(n=3)
    folds = StratifiedKFold(3, shuffle=True, random_state=0).split(frame, frame["hospital"])
    assert np.isfinite(cross_val_score(MochaEstimator(task="hospital", tol=0.1), frame, y, cv=folds)).all()


def test_lists_of_tasks_are_refused_by_what_would_cut_between_them() -> None:
    frame, y = hospitals()
    Xs, ys = as_lists(frame, y == "ill")
    with pytest.raises(ValueError, match=r"All the 4 fits failed(.|\n)*task='column'"):
        GridSearchCV(MochaEstimator(), {"lam": [0.1, 1.0]}, cv=2).fit(Xs, ys)
    with pytest.raises(ValueError, match=r"All the 3 fits failed(.|\n)*task='column'"):
        cross_val_score(MochaEstimator(), Xs, [one[:30] for one in ys], cv=3)
    with pytest.raises(BadInput, match="task='column'") as error:
        cross_val_predict(MochaEstimator(), Xs, ys, cv=2)
    assert len(str(error.value)) <= 400
    with pytest.raises(BadInput, match="task='column'"):
        Pipeline([("mocha", MochaEstimator())]).fit(Xs, ys)


def test_copies_and_files_keep_the_model() -> None:
    frame, y = hospitals()
    model = MochaEstimator(task="hospital", lam=0.3).fit(frame, y)
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "coef_")
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(frame), model.predict(frame))


def test_hinge_scores_can_be_calibrated() -> None:
    frame, y = hospitals()
    model = CalibratedClassifierCV(MochaEstimator(task="hospital", tol=0.01), cv=3).fit(frame, y)
    assert np.mean(model.predict_proba(frame).argmax(1) == (y == "ill")) > 0.9
