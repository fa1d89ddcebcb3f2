"""`MochaCV`: the strength of the regulariser by cross-validation within every task.

Each task's rows are cut into folds, classes evenly; every row is held out exactly once, and a strength is judged by
the mean over all folds and tasks. (The authors' code judges by the fifth fold alone.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from polyfed.core.errors import BadInput
from polyfed.core.keys import generator
from polyfed.tasks.estimator import MochaEstimator
from polyfed.tasks.rows import is_list
from polyfed.work.linear.losses import find

PAPER = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)  # Smith et al. 2017, section 5.2

Index = NDArray[np.int64]


class MochaCV(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Fits `estimator` with the lam, of `lams`, that does best in cross-validation; of equals, the largest.

    For lists, one X and one y per task. Of a table with a task column, take scikit-learn's GridSearchCV.

    After fit: lam_, scores_ (one a lam: accuracy, or minus the squared error, the mean over the tasks), best_.
    """

    def __init__(
        self, estimator: MochaEstimator | None = None, *, lams: Sequence[float] = PAPER, folds: int = 5, seed: int = 0
    ) -> None:
        self.estimator, self.lams, self.folds, self.seed = estimator, lams, folds, seed

    def fit(self, Xs: Sequence[Any], ys: Sequence[Any]) -> MochaCV:
        """Choose lam, then fit all rows with it."""
        if self.folds < 2:
            raise BadInput(f"folds should be at least 2. Found {self.folds}.")
        base = MochaEstimator() if self.estimator is None else self.estimator
        if base.task is not None or not is_list(Xs):
            raise BadInput(
                "MochaCV takes lists, one X and one y per task. Found a table or an estimator with task=: "
                "GridSearchCV(MochaEstimator(task='column'), {'lam': [...]}) chooses lam for a table."
            )
        ys = [np.asarray(y).ravel() for y in ys]
        held = [folds(y, self.folds, find(base.loss).labels, self.seed, t) for t, y in enumerate(ys)]
        self.scores_ = np.array([self._score(clone(base).set_params(lam=lam), Xs, ys, held) for lam in self.lams])
        best = self.scores_ >= self.scores_.max() - 1e-12
        self.lam_ = float(np.asarray(self.lams)[best].max())
        self.best_: MochaEstimator = clone(base).set_params(lam=self.lam_).fit(Xs, ys)
        return self

    def predict(self, Xs: Sequence[Any]) -> list[NDArray[Any]]:
        """The chosen model's predictions."""
        check_is_fitted(self, "best_")
        found: list[NDArray[Any]] = self.best_.predict(Xs)
        return found

    def score(self, Xs: Sequence[Any], ys: Sequence[Any]) -> float:
        """The chosen model's score."""
        check_is_fitted(self, "best_")
        return self.best_.score(Xs, ys)

    def _score(self, model: MochaEstimator, Xs: Sequence[Any], ys: Sequence[Any], held: Sequence[Index]) -> float:
        """Mean over the tasks of the quality of predictions for rows that were held out."""
        quality = [np.full(len(y), np.nan) for y in ys]
        for k in range(self.folds):
            out = [fold == k for fold in held]
            model.fit([X[~o] for X, o in zip(Xs, out, strict=True)], [y[~o] for y, o in zip(ys, out, strict=True)])
            for t, p in enumerate(model.predict([X[o] for X, o in zip(Xs, out, strict=True)])):
                y = ys[t][out[t]]
                quality[t][out[t]] = p == y if find(model.loss).labels else -((p - y) ** 2)
        return float(np.mean([np.nanmean(q) for q in quality if not np.isnan(q).all()]))


def folds(y: NDArray[Any], k: int, classes: bool, seed: int, task: int) -> Index:
    """The fold of every row, classes evenly; a task's only row is never held out (-1)."""
    if len(y) == 1:
        return np.array([-1])
    order = generator(seed, "folds", task).permutation(len(y))
    if classes:
        order = order[np.argsort(y[order], kind="stable")]
    fold = np.empty(len(y), dtype=np.int64)
    fold[order] = np.arange(len(y)) % k
    return fold
