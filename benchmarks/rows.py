"""How long it takes to make a federation of a million rows, and to look at every client's before the first round.

python benchmarks/rows.py            (aim: 2 s for the look, 20 inputs and two targets a row)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from polyfed import Federation, Objective, Problem
from polyfed.core.labels import missing_labels
from polyfed.run.plan import check_compatible

T = TypeVar("T")
ROWS, INPUTS, CLIENTS = 1_000_000, 20, 1_000


class Heads(nn.Module):
    """One output for each of two objectives."""

    def __init__(self) -> None:
        super().__init__()
        self.risk, self.kind = nn.Linear(INPUTS, 1), nn.Linear(INPUTS, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"risk": self.risk(x), "kind": self.kind(x)}


def timed(what: str, do: Callable[[], T]) -> T:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        made = do()
        seconds.append(time.perf_counter() - start)
    print(f"{what:<60} {np.median(seconds):7.3f} s  (at most {max(seconds):.3f})")
    return made


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, INPUTS)).astype(np.float32)
    risk = np.where(rng.random(ROWS) < 0.1, np.nan, rng.random(ROWS) < 0.02)
    targets, owner = {"risk": risk, "kind": rng.integers(0, 5, ROWS)}, rng.integers(0, CLIENTS, ROWS)
    texts = np.array([f"hospital {i}" for i in range(CLIENTS)], dtype=object)[owner]
    problem = Problem(Heads(), [Objective("risk", "binary"), Objective("kind", "cross-entropy")])
    federation = timed("from_arrays, owners as numbers", lambda: Federation.from_arrays(x, targets, owner=owner))
    timed("from_arrays, owners as texts", lambda: Federation.from_arrays(x, targets, owner=texts))
    timed(
        "the same, a fifth of each client's rows kept aside",
        lambda: Federation.from_arrays(x, targets, owner=owner, test=0.2),
    )
    timed(
        "everything before the first round, check_rows = false",
        lambda: check_compatible(problem, federation, rows=False),
    )
    timed("the same, with the look at every row", lambda: check_compatible(problem, federation))
    timed("which labels are missing", lambda: missing_labels(problem, federation))


if __name__ == "__main__":
    main()
