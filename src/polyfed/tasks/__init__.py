"""Many tasks, one linear model each: a scikit-learn style door to MOCHA, and what its clients compute with.

from polyfed.tasks import MochaEstimator
model = MochaEstimator(regulariser="clustered", lam=0.1).fit(Xs, ys)      # one X and one y per task
labels = model.predict(Xs)
model = MochaEstimator(task="hospital").fit(table, y)                      # or the task in a column
labels = model.predict(table)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfed.tasks.estimator import MochaEstimator as MochaEstimator
    from polyfed.tasks.selection import MochaCV as MochaCV

__all__ = ["MochaCV", "MochaEstimator"]


def __getattr__(name: str) -> Any:  # numba and scikit-learn are imported by those who fit something
    if name == "MochaEstimator":
        from polyfed.tasks.estimator import MochaEstimator

        return MochaEstimator
    if name == "MochaCV":
        from polyfed.tasks.selection import MochaCV

        return MochaCV
    raise AttributeError(f"module 'polyfed.tasks' has no attribute {name!r}")
