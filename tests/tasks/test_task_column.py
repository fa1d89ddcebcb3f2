"""The task in a column: the same models as of lists, whatever the table, the rows' order and the tasks' names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hospitals import FEATURES, as_lists, hospitals
from scipy import sparse
from sklearn.exceptions import NotFittedError

from polyfed.core.errors import BadInput
from polyfed.tasks import MochaCV, MochaEstimator


def numbered(frame: Any) -> Any:
    """The table as an array of numbers, the hospital's number in column 2."""
    return frame.assign(hospital=frame["hospital"].str[1:].astype(float)).to_numpy()


def test_a_column_gives_the_models_of_lists_and_keeps_the_rows_order() -> None:
    frame, y = hospitals()
    Xs, ys = as_lists(frame, y)
    column, lists = MochaEstimator(task="hospital").fit(frame, y), MochaEstimator().fit(Xs, ys)
    assert np.array_equal(column.coef_, lists.coef_)
    assert column.tasks_.tolist() == [f"H{t}" for t in range(6)]
    order = np.random.default_rng(1).permutation(len(frame))
    assert np.array_equal(column.predict(frame.iloc[order]), column.predict(frame)[order])
    for name, expected in zip(column.tasks_, lists.decision_function(Xs), strict=True):
        assert np.allclose(column.decision_function(frame)[frame["hospital"] == name], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("task", "table"),
    [
        (2, lambda frame: numbered(frame)),
        (-3, lambda frame: numbered(frame)),
        (2, lambda frame: frame),
        (2, lambda frame: frame.to_numpy()),
        (2, lambda frame: frame.to_numpy().tolist()),
        (2, lambda frame: sparse.csr_matrix(numbered(frame))),
        ("hospital", lambda frame: frame.astype({"hospital": "category"})),
        ("hospital", lambda frame: frame.assign(hospital=frame["hospital"].str[1:].astype("Int64"))),
    ],
)
def test_any_table_and_any_kind_of_column_will_do(task: str | int, table: Any) -> None:
    frame, y = hospitals()
    named = MochaEstimator(task="hospital").fit(frame, y)
    other = MochaEstimator(task=task).fit(table(frame), y)
    assert np.allclose(named.coef_, other.coef_, atol=1e-8)
    assert np.array_equal(named.predict(frame), other.predict(table(frame)))
    assert other.score(table(frame), y) == np.mean(other.predict(table(frame)) == y) > 0.9


def test_the_columns_names_are_kept_and_compared() -> None:
    frame, y = hospitals()
    model = MochaEstimator(task="hospital").fit(frame, y)
    assert model.feature_names_in_.tolist() == [*FEATURES[:2], "hospital", *FEATURES[2:]]
    assert model.n_features_in_ == 5
    assert model.coef_.shape == (6, 4)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["hospital", *FEATURES]])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda frame: frame.drop(columns="hospital"), "'hospital' should be a column of X"),
        (lambda frame: frame.rename(columns={"hospital": "hospitals"}), "Did you mean 'hospitals'"),
        (lambda frame: frame.to_numpy(), "give the column's number"),
        (lambda frame: frame.assign(hospital=None), "Found 240 rows whose task is missing"),
        (lambda frame: frame.assign(hospital=frame["hospital"].where(frame.index > 0, np.nan)), "Found 1 rows"),
        (lambda frame: frame.assign(hospital=pd.array([pd.NA] * 240, dtype="Int64")), "Found 240 rows"),
        (lambda frame: frame.assign(hospital=["a", 1] * 120), "all be numbers, or all be texts"),
        (lambda frame: pd.concat([frame, frame[["hospital"]]], axis=1), "Found 2 of the name 'hospital'"),
        (lambda frame: [frame, frame], "give one table"),
        (lambda frame: frame["age"].to_numpy(), "should have rows and columns"),
    ],
)
def test_a_table_that_cannot_be_read_is_a_sentence(change: Any, why: str) -> None:
    frame, y = hospitals()
    with pytest.raises(BadInput, match=why) as error:
        MochaEstimator(task="hospital").fit(change(frame), y)
    assert len(str(error.value)) <= 400


def test_a_table_with_a_hole_is_refused_as_scikit_learn_does() -> None:
    frame, y = hospitals()
    with pytest.raises(ValueError, match="Input X contains NaN"):
        MochaEstimator(task="hospital").fit(frame.assign(age=np.nan), y)


def test_a_column_number_out_of_range_is_a_sentence() -> None:
    frame, y = hospitals()
    with pytest.raises(BadInput, match=r"one of the 5 columns of X\. Found number 5"):
        MochaEstimator(task=5).fit(numbered(frame), y)


def test_an_unknown_task_is_a_sentence() -> None:
    frame, y = hospitals()
    model = MochaEstimator(task="hospital").fit(frame[frame["hospital"] != "H3"], y[frame["hospital"] != "H3"])
    with pytest.raises(BadInput, match=r"among the 5 that were fitted. Found 'H3'.*add_task"):
        model.predict(frame)
    many = frame.assign(hospital=[f"new {i}" for i in range(len(frame))])
    with pytest.raises(BadInput, match=r"Found 'new 0', .*, \.\.\.") as error:
        model.predict(many)
    assert len(str(error.value)) <= 400
    with pytest.raises(BadInput, match="Found 0"):  # numbers where texts were fitted
        model.predict(frame.assign(hospital=0))


def test_one_table_without_a_task_is_one_model() -> None:
    frame, y = hospitals()
    X = frame[FEATURES]
    plain = MochaEstimator(lam=0.4).fit(X, y)
    assert np.array_equal(plain.coef_, MochaEstimator(regulariser="independent", lam=0.4).fit([X], [y]).coef_)
    assert plain.predict(X).shape == (240,)
    assert plain.feature_names_in_.tolist() == FEATURES
    with pytest.raises(BadInput, match="Found a list of tables"):
        plain.predict([X])


def test_what_is_not_fitted_says_so() -> None:
    frame, _ = hospitals()
    for ask in (MochaEstimator(task="hospital").predict, MochaEstimator().decision_function, MochaCV().predict):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            ask(frame)


def test_lists_are_asked_for_where_lists_were_fitted() -> None:
    frame, y = hospitals()
    model = MochaEstimator().fit(*as_lists(frame, y))
    with pytest.raises(BadInput, match="one X for each of the 6 tasks fitted"):
        model.predict(frame[FEATURES])
    assert model.n_features_in_ == 4


def test_selection_over_lists_points_to_grid_search_for_a_table() -> None:
    frame, y = hospitals()
    for given in (MochaCV(MochaEstimator(task="hospital")), MochaCV()):
        with pytest.raises(BadInput, match="GridSearchCV"):
            given.fit(frame, y)
