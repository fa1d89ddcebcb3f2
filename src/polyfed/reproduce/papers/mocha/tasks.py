"""The paper's data as tasks: one for each person, field, sensor or school, cut into training and test rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.federation import Rows
from polyfed.core.keys import generator
from polyfed.data import datasets
from polyfed.data.build import skewed

Arrays = list[NDArray[Any]]
ORDERS = 100.0  # two orders of magnitude between the sizes of skewed data


@dataclass(frozen=True)
class Case:
    """A data set. key: what owns rows; share: of the tasks that lose rows in the skewed version (`skewed`)."""

    name: str
    key: str
    share: float = 0.15
    data: dict[str, Any] = field(default_factory=dict)


CASES = {
    "har": Case("har", "subject", data={"task": "sitting", "test_subjects": False}),
    "landmine": Case("landmine", "field", share=0.4, data={"standardise": False}),
    "vehicle": Case("vehicle", "sensor", share=0.08, data={"standardise": False}),
    "school": Case("school", "school", data={"standardise": False}),
}


@lru_cache(maxsize=1)
def load(name: str) -> tuple[Arrays, Arrays]:
    """Features and targets of every task."""
    case = CASES[name]
    made = datasets[case.name](**case.data)
    owner, target = made.keys[case.key], next(iter(made.targets.values()))
    mine = [owner == one for one in np.unique(owner)]
    return [made.x[rows].astype(float) for rows in mine], [target[rows].astype(float) for rows in mine]


def shuffled(name: str, seed: int, skew: bool = False) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    """Training and test rows of every task: X, y, X_test, y_test. 75 % train, and at least one row tests.

    Args:
        name: of a case.
        seed: of the shuffle.
        skew: whether a part of the tasks loses rows, so that sizes differ by two orders of magnitude.
    """
    Xs, ys = load(name)
    orders = [generator(seed, "shuffle", t).permutation(len(y)) for t, y in enumerate(ys)]
    sizes = [min(max(int(0.75 * len(y)), 1), len(y) - 1) for y in ys]
    train = [order[:n] for order, n in zip(orders, sizes, strict=True)]
    test = [order[n:] for order, n in zip(orders, sizes, strict=True)]
    if skew:
        kept = skewed(Rows.of(train), ORDERS, CASES[name].share, generator(seed, "skew"))
        train = [kept[t] for t in range(len(kept))]
    return _of(Xs, train), _of(ys, train), _of(Xs, test), _of(ys, test)


def _of(arrays: Arrays, places: Arrays) -> Arrays:
    return [a[p] for a, p in zip(arrays, places, strict=True)]
