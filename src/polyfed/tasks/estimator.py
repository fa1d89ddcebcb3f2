"""`MochaEstimator`: one linear model a task, in the manner of scikit-learn, by the rounds that a federation takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator

from polyfed.algorithms.tasks.mocha import Mocha as Rounds
from polyfed.algorithms.tasks.regularisers import KINDS, Regulariser
from polyfed.core.errors import BadInput, nearest
from polyfed.core.settings import build
from polyfed.tasks.engine import open_door
from polyfed.work.linear.examples import Examples, as_examples, signs
from polyfed.work.linear.losses import Loss, find

Floats = NDArray[np.float64]


class MochaEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Linear models of related tasks: min sum_t sum_i l(w_t^T x, y) + R(W, Omega), by MOCHA to a given duality gap.

    loss: hinge, smoothed-hinge, logistic or squared; loss_scale: 'sum' over a task's rows, or their 'mean'.
    regulariser: independent, mean, fixed, clustered, probabilistic or graphical; lam is its strength and `structure`
    its other settings, {'clusters': 3} (see `algorithms.tasks.regularisers`). tol: the relative gap to stop at, after
    `omega_steps` Omega steps, each after `omega_every` rounds or when the gap is reached. intercept: a constant
    feature, regularised like the others. standardise: mean 0 and variance 1 over all tasks' rows; sparse features are
    only scaled. n_jobs: threads.

    After fit: coef_ (tasks x features), intercept_, omega_, gap_ (relative), primal_, dual_, n_iter_, notes_.
    Smith, Chiang, Sanjabi, Talwalkar, "Federated Multi-Task Learning", 2017.
    """

    def __init__(
        self,
        *,
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
        self.loss, self.regulariser, self.lam, self.structure = loss, regulariser, lam, structure
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

    def fit(self, Xs: Sequence[Any], ys: Sequence[Any]) -> MochaEstimator:
        """One X (rows x features) and one y per task."""
        loss = find(self.loss)
        Xs, ys = self._targets(Xs, ys, loss)
        self.shift_, self.scale_ = self._moments(Xs) if self.standardise else (np.zeros(1), np.ones(1))
        tasks = [_named(t, X, y, loss, self._features) for t, (X, y) in enumerate(zip(Xs, ys, strict=True))]
        self._solve(tasks)
        return self

    def decision_function(self, Xs: Sequence[Any]) -> list[Floats]:
        """w_t^T x for every row of every task."""
        if len(Xs) != len(self.coef_):
            raise BadInput(f"Give one X for each of the {len(self.coef_)} tasks fitted. Found {len(Xs)}.")
        each = zip(Xs, self.coef_, self.intercept_, strict=True)
        return [np.asarray(X @ w, dtype=np.float64).ravel() + b for X, w, b in each]

    def predict(self, Xs: Sequence[Any]) -> list[NDArray[Any]]:
        """Labels as they were given, or numbers."""
        scores = self.decision_function(Xs)
        return [self.classes_[(z > 0).astype(int)] for z in scores] if find(self.loss).labels else list(scores)

    def score(self, Xs: Sequence[Any], ys: Sequence[Any]) -> float:
        """Mean over the tasks of the accuracy, or of minus the mean squared error."""
        each = list(zip(self.predict(Xs), ys, strict=True))
        if find(self.loss).labels:
            return float(np.mean([np.mean(p == np.asarray(y).ravel()) for p, y in each]))
        return -float(np.mean([np.mean((p - np.asarray(y).ravel()) ** 2) for p, y in each]))

    def rule(self) -> Regulariser:
        """The regulariser, checked."""
        if self.regulariser not in KINDS:
            raise BadInput(f"Unknown regulariser {self.regulariser!r}.{nearest(self.regulariser, KINDS)}")
        kind = KINDS[self.regulariser]
        strength = {"lam": self.lam} if "lam" in kind.__dataclass_fields__ else {"lam1": self.lam, "lam2": self.lam}
        made, _ = build(kind, {**strength, **(self.structure or {})}, "structure")
        rule: Regulariser = made
        return rule

    # fitting

    def _solve(self, tasks: list[Examples]) -> None:
        settings = {
            name: getattr(self, name) for name in ("loss", "loss_scale", "smoothing", "epochs", "per_task_sigma")
        }
        rounds, _ = build(
            Rounds, {**settings, "regulariser": self.rule(), "omega_every": 0, "stop_gap": self.tol}, "MochaEstimator"
        )
        engine, fleet = open_door(tasks, seed=self.seed, threads=self.n_jobs)
        try:
            self._keep(*self._rounds(rounds, fleet))
        finally:
            engine.close()

    def _rounds(self, rounds: Rounds, fleet: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Rounds until the gap is small, an Omega step, and again; the last Omega's problem is solved to the end."""
        state, rule = rounds.begun(dict(fleet.problem.initial()), fleet), rounds.rule
        left, since = (self.omega_steps if rule.learns else 0), 0
        for t in range(1, self.max_iter + 1):
            fleet.begin(t)
            state, _ = rounds.round(t, state, fleet)
            found, since = rounds.measure(state, fleet), since + 1
            if left and (found["done"] or since >= self.omega_every):
                state, left, since = rounds.restructured(state), left - 1, 0
            elif not left and found["done"]:
                break
        self.n_iter_ = t
        return state, rounds.measure(state, fleet)

    def _keep(self, state: dict[str, Any], found: dict[str, float]) -> None:
        W = state["W"].numpy()
        weights, bias = (W[:, :-1], W[:, -1]) if self.intercept else (W, np.zeros(len(W)))
        self.coef_ = weights / self.scale_
        self.intercept_ = bias - self.coef_ @ np.broadcast_to(self.shift_, self.coef_.shape[1:])
        self.omega_ = state["omega"].numpy()
        self.primal_, self.dual_ = found["primal"], found["dual"]
        self.gap_ = found["gap"] / max(abs(found["primal"]), np.finfo(float).tiny)
        if self.gap_ > self.tol:
            self.notes_.append(f"After {self.n_iter_} rounds the relative gap is {self.gap_:.1e}: raise max_iter.")

    def _targets(self, Xs: Sequence[Any], ys: Sequence[Any], loss: Loss) -> tuple[list[Any], list[Any]]:
        """Rows and targets as arrays, the classes and what was made of them noted."""
        self.notes_: list[str] = []
        if not len(Xs) or len(Xs) != len(ys):
            raise BadInput(f"Give one X and one y per task. Found {len(Xs)} and {len(ys)}.")
        if len({np.shape(X)[-1] for X in Xs}) > 1:
            raise BadInput("All tasks should have the same features. Found different numbers of columns.")
        ys = [np.asarray(y).ravel() for y in ys]
        if not loss.labels:
            return list(Xs), ys
        self.classes_ = np.unique(np.concatenate(ys))
        signs(self.classes_)  # refuses other labels
        if 0 in self.classes_:
            self.notes_.append("Labels 0 and 1 were read as -1 and 1; predictions are 0 and 1.")
        if len(self.classes_) == 1:
            self.classes_ = np.array([-1, 1]) if self.classes_[0] in (-1, 1) else np.array([0, 1])
        self.notes_ += [f"Task {t} has one class only." for t, y in enumerate(ys) if len(np.unique(y)) == 1]
        return list(Xs), ys

    def _moments(self, Xs: Sequence[Any]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of every feature over all rows; sparse ones keep their zeros."""
        n = sum(X.shape[0] for X in Xs)
        mean = sum(np.asarray(X.sum(0), dtype=np.float64).ravel() for X in Xs) / n
        squares = sum(np.asarray((X.multiply(X) if sparse.issparse(X) else np.square(X)).sum(0)).ravel() for X in Xs)
        spread = np.sqrt(np.maximum(squares / n - mean**2, 0))
        scale = np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1), spread, 1.0)
        centre = self.intercept and not any(sparse.issparse(X) for X in Xs)
        return mean if centre else np.zeros_like(mean), scale

    def _features(self, X: Any) -> Any:
        """Scaled, with a constant feature where there is an intercept."""
        if sparse.issparse(X):
            X = sparse.csr_matrix(X, dtype=np.float64)
            X = X.multiply(1 / self.scale_).tocsr() if self.standardise else X
            return sparse.hstack([X, np.ones((X.shape[0], 1))]).tocsr() if self.intercept else X
        X = (np.asarray(X, dtype=np.float64) - self.shift_) / self.scale_ if self.standardise else np.asarray(X, float)
        return np.hstack([X, np.ones((len(X), 1))]) if self.intercept else X


def _named(t: int, X: Any, y: Any, loss: Loss, features: Any) -> Examples:
    """Checked rows; what is wrong with them is said with the task's number."""
    try:
        return as_examples(features(X) if np.ndim(X) == 2 or sparse.issparse(X) else X, y, loss)
    except BadInput as error:
        raise BadInput(f"Task {t}: {error}") from error
