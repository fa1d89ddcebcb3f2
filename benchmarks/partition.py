"""How long partitions take: 100 clients over 60,000 rows (aim: 1 s), and a million clients by reference.

python benchmarks/partition.py
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from polyfed.core.federation import Federation
from polyfed.core.keys import generator
from polyfed.core.problem import Objective
from polyfed.data import Dataset, partitions
from polyfed.data.build import federate

HUNDRED: list[tuple[str, dict[str, Any]]] = [
    ("iid", {}), ("iid", {"sizes": "lognormal"}), ("dirichlet", {}), ("dirichlet", {"alpha": 0.01, "by": "left"}),
    ("dirichlet", {"reuse": True, "rows_per_client": 600}), ("shards", {}), ("labels", {"by": "left"}),
    ("natural", {"key": "user"}), ("windows", {"rows_per_client": 600}),
]  # fmt: skip


def pairs(n: int) -> Dataset:
    """n examples shaped like MultiMNIST's: two digits, a composite label, an owner; no pixels."""
    rng = generator(0, "benchmark")
    left, right = rng.integers(0, 10, n), rng.integers(0, 10, n)
    objectives = tuple(Objective(name, "cross-entropy") for name in ("left", "right"))
    targets, user = {"left": left, "right": right}, rng.integers(0, 100, n)
    return Dataset(np.zeros((n, 1), np.uint8), targets, objectives, labels=10 * left + right, keys={"user": user})


def timed(what: str, make: Callable[[], Federation]) -> None:
    start = time.perf_counter()
    made = make()
    seconds = time.perf_counter() - start
    tracemalloc.start()
    made = make()
    kept, peak = (size / 1e6 for size in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    print(f"{what:<62} {len(made):>9,} clients {seconds:7.3f} s  {kept:6.1f} MB kept {peak:6.1f} MB at most")


def main() -> None:
    dataset = pairs(60_000)

    def federation(name: str, aside: float = 0.1, **options: Any) -> Federation:
        rows = partitions[name](dataset, rng=generator(0, "partition"), **options)
        return federate(dataset, rows, valid=aside, test=aside)

    partitions["iid"]  # finds all partitions, so that none is timed with its imports
    for name, options in HUNDRED:
        timed(f"{name} {options or ''}", partial(federation, name, **options))
    million = {"clients": 1_000_000, "rows_per_client": 1000}
    timed("windows, 1000 rows each", partial(federation, "windows", 0.0, **million))
    timed("windows, 1000 rows each, 80/10/10", partial(federation, "windows", **million))


if __name__ == "__main__":
    main()
