"""`MochaEstimator`: one linear model a task, in the manner of scikit-learn, by the rounds that a federation takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, check_array, check_X_y
from sklearn.utils.validation import check_is_fitted, validate_data

from polyfed.algorithms.tasks.mocha import Mocha as Rounds
from polyfed.algorithms.tasks.regularisers import KINDS, Independent, Regulariser
from polyfed.core.errors import BadInput, nearest
from polyfed.core.settings import build
from polyfed.tasks.newcomer import Newcomer
from polyfed.tasks.rows import (
    BadRows,
    Index,
    classes_of,
    grouped,
    is_list,
    known_tasks,
    new_tasks,
    offered,
    positions,
    split,
    targets,
    tasks_of,
)
from polyfed.tasks.scaling import Scaling, moments, plain
from polyfed.tasks.solve import Plan, Solved, solve
from polyfed.work.linear.examples import Examples, as_examples
from polyfed.work.linear.losses import LOSSES, Loss, find

Floats = NDArray[np.float64]
NUMBERS = [name for name, loss in LOSSES.items() if not loss.labels]


def _classifies(model: MochaEstimator) -> bool:
    if model.loss in NUMBERS:
        raise AttributeError(f"Only classes have a decision_function: loss={model.loss!r} predicts numbers.")
    return True


def _has_probabilities(model: MochaEstimator) -> bool:
    if model.loss != "logistic":
        raise AttributeError(
            f"Probabilities come with loss='logistic'. Found loss={model.loss!r}, whose scores are not probabilities: "
            "take decision_function, or put the estimator into scikit-learn's CalibratedClassifierCV."
        )
    return True


class MochaEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Linear models of related tasks: min sum_t sum_i l(w_t^T x, y) + R(W, Omega), by MOCHA to a given duality gap.

    X is a table whose column `task` has the task of each row; or, without `task`, a list of one X per task. A single
    table without `task` is a single task, with the regulariser lam |w|^2. Tables are DataFrames, arrays, or sparse.
    More than two classes: each against the rest, with one Omega for all.

    After fit: tasks_ (their order in what follows), classes_, coef_ (tasks x features; with more than two classes
    tasks x classes x features), intercept_, omega_, gap_ (relative), primal_, dual_, n_iter_, notes_, n_features_in_
    (the task's column is one) and, of a DataFrame, feature_names_in_.
    Smith, Chiang, Sanjabi, Talwalkar, "Federated Multi-Task Learning", 2017.

    Args:
        task: the column of X with the task of each row: its name in a DataFrame, or its number, -1 for the last.
        loss: hinge, smoothed-hinge or logistic for classes, squared for numbers.
        regulariser: independent, mean, fixed, clustered, probabilistic or graphical.
        lam: its strength.
        structure: its other settings, {'clusters': 3} (see `algorithms.tasks.regularisers`).
        loss_scale: 'sum' over a task's rows, or their 'mean'.
        smoothing: of the smoothed hinge.
        intercept: a constant feature, regularised like the others.
        standardise: mean 0 and variance 1 over all tasks' rows; sparse features are only scaled.
        epochs: passes of each task over its rows in a round.
        omega_every: rounds before an Omega step, which also follows when the gap is small.
        omega_steps: how many Omega steps there are, in a fit and for each task that is added.
        per_task_sigma: each task with its own sigma' (Remark 5).
        tol: the relative duality gap to stop at.
        max_iter: rounds at most.
        seed: of the rows' order.
        n_jobs: threads.
    """

    def __init__(
        self,
        *,
        task: str | int | None = None,
        loss: str = "hinge",
        regulariser: str = "clustered",
        lam: float = 0.1,
        structure: Mapping[str, Any] | None = None,
        loss_scale: str = "sum",
        smoothing: float = 0.5,
        intercept: bool = True,
        standardise: bool = False,
        epochs: float = 10.0,
        omega_every: int = 20,
        omega_steps: int = 10,
        per_task_sigma: bool = True,
        tol: float = 1e-3,
        max_iter: int = 1000,
        seed: int = 0,
        n_jobs: int = 1,
    ) -> None:
        self.task, self.loss, self.regulariser, self.lam, self.structure = task, loss, regulariser, lam, structure
        self.loss_scale, self.smoothing, self.intercept, self.standardise = (
            loss_scale,
            smoothing,
            intercept,
            standardise,
        )
        self.epochs, self.omega_every, self.omega_steps = epochs, omega_every, omega_steps
        self.per_task_sigma, self.tol, self.max_iter, self.seed, self.n_jobs = (
            per_task_sigma,
            tol,
            max_iter,
            seed,
            n_jobs,
        )

    def fit(self, X: Any, y: Any) -> MochaEstimator:
        """A table and the target of each row; or one X and one y per task."""
        loss = find(self.loss)
        self.notes_: list[str] = []
        self.tasks_: NDArray[Any]
        self._lists = self.task is None and is_list(X)
        if self._lists:
            _refuse_cuts(sys._getframe(1).f_globals.get("__name__", ""))
            Xs, ys = self._from_lists(X, y)
        else:
            Xs, ys = self._from_table(X, y, loss)
        if loss.labels:
            self.classes_ = classes_of(ys)
            self._note_labels(ys)
        self.shift_, self.scale_ = moments(Xs, self.intercept) if self.standardise else plain()
        tasks = [self._examples(f"Task {t}", X, y, loss) for t, X, y in zip(self.tasks_, Xs, ys, strict=True)]
        self._keep(self._solved([list(every) for every in zip(*tasks, strict=True)]))
        return self

    def predict(self, X: Any) -> Any:
        """Labels as they were given, or numbers: one a row in the order of the rows, or a list of them."""
        scores = self._scores(X)
        return [self._named(z) for z in scores] if self._lists else self._named(scores)

    @offered(_classifies)
    def decision_function(self, X: Any) -> Any:
        """w_t^T x of every row, positive for the second class; with more than two classes a column for each."""
        return self._scores(X)

    @offered(_has_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """A column for each class. Of more than two, each against the rest, scaled to a sum of 1."""
        scores = self._scores(X)
        return [_probabilities(z) for z in scores] if self._lists else _probabilities(scores)

    def score(self, X: Any, y: Any) -> float:
        """Accuracy or R^2 over a table; over lists the tasks' mean accuracy, or minus their mean squared error."""
        labels, found = find(self.loss).labels, self.predict(X)
        if not self._lists:
            return float(accuracy_score(y, found) if labels else r2_score(y, found))
        each = [(p, np.asarray(one).ravel()) for p, one in zip(found, y, strict=True)]
        return float(np.mean([np.mean(p == one) if labels else -np.mean((p - one) ** 2) for p, one in each]))

    def add_task(self, X: Any, y: Any) -> MochaEstimator:
        """A new task from its own rows, few as they may be: the other tasks' weights stay, and tell it where to look.

        Its weights are those that are best for (1) with the other tasks' as they are (see `polyfed.tasks.newcomer`).
        With `task`, X has the new task in its column (or several, added one after another); fitted to a list, X is
        one table. For the regulariser 'fixed', first set `structure` to an omega with a row for the new task.
        """
        check_is_fitted(self, "coef_")
        if self.task is None and not self._lists:
            raise BadRows("A task can be added to several. Found an estimator of one task: set task=, or fit a list.")
        features, which, names = self._new_rows(X)
        features, y = check_X_y(features, y, accept_sparse="csr", dtype=np.float64, estimator=self)
        loss = find(self.loss)
        if loss.labels and (strange := sorted(set(y.tolist()) - set(self.classes_.tolist()))):
            raise BadRows(f"A new task's labels should be among the {len(self.classes_)} classes. Found {strange[:3]}.")
        for name, rows, labels in zip(names, *grouped(features, y, which, len(names)), strict=True):
            self._join(self._examples(f"Task {name}", rows, labels, loss), name, loss)
        return self

    def rule(self) -> Regulariser:
        """The regulariser, checked."""
        if self.regulariser not in KINDS:
            raise BadInput(f"Unknown regulariser {self.regulariser!r}.{nearest(self.regulariser, KINDS)}")
        kind = KINDS[self.regulariser]
        strength = {"lam": self.lam} if "lam" in kind.__dataclass_fields__ else {"lam1": self.lam, "lam2": self.lam}
        made, _ = build(kind, {**strength, **(self.structure or {})}, "structure")
        rule: Regulariser = made
        return rule

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        numbers = self.loss in NUMBERS
        tags.estimator_type = "regressor" if numbers else "classifier"
        tags.regressor_tags, tags.classifier_tags = (RegressorTags(), None) if numbers else (None, ClassifierTags())
        tags.target_tags.required = tags.input_tags.sparse = True
        return tags

    # reading

    def _from_lists(self, Xs: Sequence[Any], ys: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        if len(Xs) != len(ys):
            raise BadInput(f"Give one X and one y per task. Found {len(Xs)} and {len(ys)}.")
        if len({np.shape(X)[-1] for X in Xs}) > 1:
            raise BadInput("All tasks should have the same features. Found different numbers of columns.")
        self.tasks_, self.n_features_in_ = np.arange(len(Xs)), np.shape(Xs[0])[-1]
        return [X if sparse.issparse(X) else np.asarray(X) for X in Xs], [np.asarray(y).ravel() for y in ys]

    def _from_table(self, X: Any, y: Any, loss: Loss) -> tuple[list[Any], list[Any]]:
        features, column = (X, None) if self.task is None else split(X, self.task)
        features, y = check_X_y(
            features, y, accept_sparse="csr", dtype=np.float64, y_numeric=not loss.labels, estimator=self
        )
        validate_data(self, X, skip_check_array=True)  # notes the columns' number and names
        self.tasks_, which = (np.arange(1), np.zeros(len(y), int)) if column is None else tasks_of(column)
        return grouped(features, y, which, len(self.tasks_))

    def _read(self, X: Any) -> tuple[Any, Index | None]:
        """The features of a table like the one that was fitted, and the number of each row's task."""
        if is_list(X):
            raise BadRows("The estimator was fitted to one table: give one here, too. Found a list of tables.")
        features, column = (X, None) if self.task is None else split(X, self.task)
        features = check_array(features, accept_sparse="csr", dtype=np.float64, estimator=self)
        validate_data(self, X, reset=False, skip_check_array=True)
        return features, None if column is None else known_tasks(column, self.tasks_)

    def _new_rows(self, X: Any) -> tuple[Any, Index, list[Any]]:
        """A new task's features, the number of each row's among the new tasks, and their names."""
        if self.task is None:
            if np.shape(X)[1:] != (self.n_features_in_,):
                raise BadRows(f"A new task needs rows of {self.n_features_in_} features. Found shape {np.shape(X)}.")
            return X, np.zeros(np.shape(X)[0], dtype=np.int64), [len(self.tasks_)]
        validate_data(self, X, reset=False, skip_check_array=True)
        features, column = split(X, self.task)
        names, which = new_tasks(column, self.tasks_)
        return features, which, list(names)

    def _note_labels(self, ys: Sequence[Any]) -> None:
        if self.classes_.tolist() == [0, 1]:
            self.notes_.append("Labels 0 and 1 were read as -1 and 1; predictions are 0 and 1.")
        alone = [t for t, y in zip(self.tasks_, ys, strict=True) if len(np.unique(y)) == 1]
        self.notes_ += [f"Task {t} has one class only." for t in alone]

    def _examples(self, name: str, X: Any, y: Any, loss: Loss) -> list[Examples]:
        """A task's checked rows, once for each model; what is wrong with them is said with the task's name."""
        try:
            X = self._scaling.features(X) if np.ndim(X) == 2 or sparse.issparse(X) else X
            return [as_examples(X, target, loss) for target in targets(y, self.classes_ if loss.labels else None)]
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from error

    # fitting

    @property
    def _scaling(self) -> Scaling:
        return Scaling(self.shift_, self.scale_, self.intercept)

    def _solved(self, problems: list[list[Examples]]) -> Solved:
        names = ("loss", "loss_scale", "smoothing", "epochs", "per_task_sigma")
        rule = self.rule() if self._lists or self.task is not None else Independent(lam=self.lam)
        given = {**{name: getattr(self, name) for name in names}, "regulariser": rule, "omega_every": 0}
        rounds, _ = build(Rounds, given, "MochaEstimator")
        plan = Plan(self.tol, self.max_iter, self.omega_every, self.omega_steps, self.seed, self.n_jobs)
        return solve(problems, rounds, plan)

    def _keep(self, found: Solved) -> None:
        self.n_iter_, self.omega_, self.gap_ = found.rounds, found.omega, found.gap
        self.primal_, self.dual_ = found.primal, found.dual
        self._weights(found.W)
        if self.gap_ > self.tol:
            self.notes_.append(f"After {self.n_iter_} rounds the relative gap is {self.gap_:.1e}: raise max_iter.")

    def _weights(self, W: Floats) -> None:
        """coef_ and intercept_ of W (tasks x models x features)."""
        coef, intercept = self._scaling.unscaled(W)
        one = W.shape[1] == 1
        self.coef_, self.intercept_ = (coef[:, 0], intercept[:, 0]) if one else (coef, intercept)

    def _join(self, rows: list[Examples], name: Any, loss: Loss) -> None:
        """Weights of a new task, beside the others."""
        coef = self.coef_.reshape(len(self.coef_), -1, self.coef_.shape[-1])
        W = self._scaling.scaled(coef, self.intercept_.reshape(coef.shape[:2]))
        c = 1.0 if self.loss_scale == "sum" else 1 / len(rows[0].y)
        new = Newcomer(rows, loss, self.smoothing, c, self.tol, self.max_iter, self.omega_steps, self.seed)
        w, self.omega_ = new.joined(W, self.rule())
        self._weights(np.concatenate([W, w[None]]))
        self.tasks_ = np.append(self.tasks_, np.asarray([name]))

    # answers

    def _scores(self, X: Any) -> Any:
        """w_t^T x of every row: one number each, or a column for each class."""
        check_is_fitted(self, "coef_")
        if self._lists:
            if not is_list(X) or len(X) != len(self.coef_):
                found = len(X) if is_list(X) else f"shape {np.shape(X)}"
                raise BadInput(f"Give one X for each of the {len(self.coef_)} tasks fitted. Found {found}.")
            return [self._score(np.asarray(x) if not sparse.issparse(x) else x, t) for t, x in enumerate(X)]
        features, which = self._read(X)
        if which is None:
            return self._score(features, 0)
        scores = np.empty((features.shape[0], *self.coef_.shape[1:-1]))
        for t, rows in enumerate(positions(which, len(self.tasks_))):
            scores[rows] = self._score(features[rows], t)
        return scores

    def _score(self, X: Any, t: int) -> Floats:
        scores: Floats = np.asarray(X @ self.coef_[t].T, dtype=np.float64) + self.intercept_[t]
        return scores

    def _named(self, scores: Floats) -> NDArray[Any]:
        if not find(self.loss).labels:
            return scores
        best = scores.argmax(1) if scores.ndim == 2 else (scores > 0).astype(int)
        named: NDArray[Any] = self.classes_[best]
        return named


def _probabilities(scores: Floats) -> Floats:
    p: Floats = expit(scores)
    if p.ndim == 1:
        return np.column_stack([1 - p, p])
    total = p.sum(1, keepdims=True)
    each: Floats = np.divide(p, total, out=np.full_like(p, 1 / p.shape[1]), where=total > 0)
    return each


def _refuse_cuts(caller: str) -> None:
    """Lists of tasks, cut by scikit-learn, are cut between tasks: models would be judged by other tasks' rows."""
    if caller.startswith("sklearn."):
        raise BadInput(
            "scikit-learn's tools cut a list of tasks between tasks, so that a task's model would be judged by another "
            "task's rows. Give one table with the task in a column, MochaEstimator(task='column'), or take MochaCV."
        )
