"""The error tables of the MOCHA paper (its Tables 1 and 4): global, local and multi-task models on real data.

    POLYFED_DATA=/where/the/data/is python benchmarks/mocha_tables.py --sets landmine vehicle --shuffles 10 [--skew]

For each shuffle: 75 % of every task's rows to train, lambda of {1e-3 ... 1e3} by 5-fold cross-validation, the mean over
tasks of the error on the rest; then mean and standard error over shuffles. Smith et al. 2017, section 5.2; its grid
{1e-5 ... 10} goes with its code's mean of losses, ours with the sum. Rows are the same for all three models. `plain`
is the paper's model (raw features, no intercept), otherwise features are standardised over all training rows and have
an intercept. School is regression: explained variance in %.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from polyfed.core.federation import Rows
from polyfed.core.keys import generator
from polyfed.data import datasets
from polyfed.data.build import skewed
from polyfed.tasks import MochaCV, MochaEstimator

Arrays = list[NDArray[Any]]
GRID = tuple(10.0**k for k in range(-3, 4))
QUICK: dict[str, Any] = {"tol": 1e-2, "max_iter": 40, "epochs": 5.0, "omega_every": 4, "omega_steps": 5}


@dataclass(frozen=True)
class Case:
    """A data set: its settings, what owns rows, and the clusters that MTL assumes (the paper does not say)."""

    name: str
    key: str
    loss: str = "hinge"
    clusters: int = 3
    share: float = 0.15  # of the tasks that lose rows in the skewed version, so that sizes deviate as in its Table 3
    data: dict[str, Any] = field(default_factory=dict)
    plain: bool = False


CASES = {
    "landmine": Case("landmine", "field", clusters=2, share=0.4, data={"standardise": False}),
    "landmine-plain": Case("landmine", "field", clusters=2, share=0.4, data={"standardise": False}, plain=True),
    "har": Case("har", "subject", data={"task": "sitting", "test_subjects": False}),
    "vehicle": Case("vehicle", "sensor", share=0.08, data={"standardise": False}),
    "school": Case("school", "school", loss="squared", data={"standardise": False}),
}


def load(case: Case) -> tuple[Arrays, Arrays]:
    made = datasets[case.name](**case.data)
    owner, target = made.keys[case.key], next(iter(made.targets.values()))
    ids = np.unique(owner)
    return [made.x[owner == t].astype(float) for t in ids], [target[owner == t].astype(float) for t in ids]


def cut(Xs: Arrays, ys: Arrays, seed: int, share: float) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    """75 % to train, at least one row to test; with a share: sizes that differ by a factor of 100 (its Table 3)."""
    orders = [generator(seed, "shuffle", t).permutation(len(y)) for t, y in enumerate(ys)]
    sizes = [min(max(int(0.75 * len(y)), 1), len(y) - 1) for y in ys]
    train = [order[:n] for order, n in zip(orders, sizes, strict=True)]
    test = [order[n:] for order, n in zip(orders, sizes, strict=True)]
    if share:
        rows = skewed(Rows.of(train), 100.0, share, generator(seed, "skew"))
        train = [rows[t] for t in range(len(rows))]

    def of(arrays: Arrays, places: Arrays) -> Arrays:
        return [a[p] for a, p in zip(arrays, places, strict=True)]

    return of(Xs, train), of(ys, train), of(Xs, test), of(ys, test)


def fit(kind: str, case: Case, Xs: Arrays, ys: Arrays, seed: int) -> MochaEstimator:
    """The model of a kind, its strength chosen by cross-validation."""
    structure = {"clusters": min(case.clusters, len(Xs)), "eta": 0.1} if kind == "mtl" else None
    model = MochaEstimator(
        loss=case.loss, regulariser="clustered" if kind == "mtl" else "independent", structure=structure,
        intercept=not case.plain, standardise=not case.plain, seed=seed, **QUICK,
    )  # fmt: skip
    chosen = MochaCV(model, lams=GRID, seed=seed).fit(Xs, ys)
    print(f"    {kind}: lambda {chosen.lam_:g}", flush=True)
    best: MochaEstimator = chosen.best_.set_params(max_iter=200, tol=1e-3).fit(Xs, ys)
    return best


def judged(case: Case, scores: Arrays, ys: Arrays) -> dict[str, float]:
    """Errors in %, the mean over tasks; or the explained variance of all tasks together."""
    if case.loss == "squared":
        z, y = np.concatenate(scores), np.concatenate(ys)
        return {"explained variance": 100 * float(1 - ((z - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())}
    errors = [100 * np.mean((z > 0) != (y > 0)) for z, y in zip(scores, ys, strict=True)]
    found = {"error": float(np.mean(errors))}
    two = [(z, y > 0) for z, y in zip(scores, ys, strict=True) if len(np.unique(y)) == 2]
    wrong = [50 * (np.mean(z[y] <= 0) + np.mean(z[~y] > 0)) for z, y in two]
    auc = [100 * roc_auc_score(y, z) for z, y in two]
    return {**found, "balanced error": float(np.mean(wrong)), "AUC": float(np.mean(auc))}


def scored(case: Case, model: MochaEstimator, Xs: Arrays) -> Arrays:
    """w_t^T x of every row."""
    answer: Arrays = model.predict(Xs) if case.loss == "squared" else model.decision_function(Xs)
    return answer


def shuffle(case: Case, Xs: Arrays, ys: Arrays, seed: int, skew: bool) -> dict[str, dict[str, float]]:
    X, y, X_test, y_test = cut(Xs, ys, seed, case.share if skew else 0.0)
    found = {}
    for kind in ("global", "local", "mtl"):
        if kind == "global":
            model = fit(kind, case, [np.vstack(X)], [np.concatenate(y)], seed)
            scores = [scored(case, model, [part])[0] for part in X_test]
        else:
            scores = scored(case, fit(kind, case, X, y, seed), X_test)
        found[kind] = judged(case, scores, y_test)
        print(f"    shuffle {seed} {kind}: " + ", ".join(f"{k} {v:.2f}" for k, v in found[kind].items()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--shuffles", type=int, default=10)
    parser.add_argument("--skew", action="store_true", help="the skewed versions (Table 4)")
    options = parser.parse_args()
    for name in options.sets:
        start, (Xs, ys) = time.perf_counter(), load(CASES[name])
        runs = [shuffle(CASES[name], Xs, ys, seed, options.skew) for seed in range(options.shuffles)]
        took = time.perf_counter() - start
        print(f"{name}{'-skew' if options.skew else ''}: {len(Xs)} tasks, {len(runs)} shuffles, {took:.0f} s")
        for kind in runs[0]:
            columns = {metric: np.array([run[kind][metric] for run in runs]) for metric in runs[0][kind]}
            text = ", ".join(
                f"{k} {v.mean():.2f} ({v.std() / max(len(v) - 1, 1) ** 0.5:.2f})" for k, v in columns.items()
            )
            print(f"  {kind:7} {text}", flush=True)
        print(json.dumps({"set": name, "skew": options.skew, "runs": runs}), flush=True)


if __name__ == "__main__":
    main()
