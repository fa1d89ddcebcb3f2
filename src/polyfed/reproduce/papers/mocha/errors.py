"""Errors of global, local and multi-task models, as in the paper's Tables 1 and 4; and the sizes of Tables 2 and 3."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from polyfed.core.settings import Settings
from polyfed.reproduce.papers.mocha.tasks import Arrays, shuffled
from polyfed.tasks import MochaCV, MochaEstimator

ROUGH: Settings = {"tol": 1e-2, "max_iter": 40, "epochs": 5.0, "omega_every": 4, "omega_steps": 5}  # to choose lambda


def errors(settings: Settings, seed: int) -> dict[str, Any]:
    """A model's errors on the test rows of a shuffle, in %, the mean over tasks; lambda by cross-validation.

    Args:
        settings: case, skew, loss, plain (raw features and no intercept), clusters, eta, lams, folds, and model:
            'global', 'local' or 'mtl'.
        seed: of the shuffle.
    """
    X, y, X_test, y_test = shuffled(settings["case"], seed, settings.get("skew", False))
    if settings["model"] == "global":
        model = _fitted(settings, [np.vstack(X)], [np.concatenate(y)], seed)
        scores = [_scores(model, [part])[0] for part in X_test]
    else:
        scores = _scores(_fitted(settings, X, y, seed), X_test)
    return {"values": _judged(scores, y_test, settings["loss"])}


def _fitted(settings: Settings, X: Arrays, y: Arrays, seed: int) -> MochaEstimator:
    tied, plain = settings["model"] == "mtl", settings.get("plain", False)
    structure = {"clusters": min(settings["clusters"], len(X)), "eta": settings["eta"]} if tied else None
    model = MochaEstimator(
        loss=settings["loss"], regulariser="clustered" if tied else "independent", structure=structure,
        intercept=not plain, standardise=not plain, seed=seed, **ROUGH,
    )  # fmt: skip
    chosen = MochaCV(model, lams=settings["lams"], folds=settings["folds"], seed=seed).fit(X, y)
    best: MochaEstimator = chosen.best_.set_params(max_iter=200, tol=1e-3).fit(X, y)
    return best


def _scores(model: MochaEstimator, X: Arrays) -> Arrays:
    """w_t^T x of every row."""
    found: Arrays = model.predict(X) if model.loss == "squared" else model.decision_function(X)
    return found


def _judged(scores: Arrays, ys: Arrays, loss: str) -> dict[str, float]:
    """Of classes, errors and areas under the curve, the mean over tasks; of numbers, the explained variance of all."""
    if loss == "squared":
        z, y = np.concatenate(scores), np.concatenate(ys)
        return {"explained": 100 * float(1 - ((z - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())}
    wrong = [np.mean((z > 0) != (y > 0)) for z, y in zip(scores, ys, strict=True)]
    both = [(z, y > 0) for z, y in zip(scores, ys, strict=True) if len(np.unique(y)) == 2]
    balanced = [(np.mean(z[y] <= 0) + np.mean(z[~y] > 0)) / 2 for z, y in both]
    areas = [roc_auc_score(y, z) for z, y in both]
    found = {"error": wrong, "balanced": balanced, "auc": areas}
    return {name: 100 * float(np.mean(values)) for name, values in found.items()}


def sizes(settings: Settings, seed: int) -> dict[str, Any]:
    """How many tasks, features and training rows a data set has, and how far that is from what the paper prints.

    Args:
        settings: case, skew, and paper: tasks, fewest rows, most rows and their standard deviation as printed.
        seed: of the shuffle.
    """
    X, _, _, _ = shuffled(settings["case"], seed, settings["skew"])
    n = np.array([len(one) for one in X])
    found = {"tasks": len(n), "least": int(n.min()), "most": int(n.max()), "deviation": float(n.std(ddof=1))}
    paper = dict(zip(found, settings["paper"], strict=True))
    parts = {name: abs(found[name] / paper[name] - 1) for name in found}
    away = {"counts": 100 * max(parts[name] for name in ("tasks", "least", "most")), "spread": 100 * parts["deviation"]}
    return {"values": {**found, "features": X[0].shape[1], "ratio": float(n.max() / n.min()), **away}}
