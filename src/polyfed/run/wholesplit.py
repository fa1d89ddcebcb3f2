"""The server's side of metrics over a whole split: statistics added up as they come, and figures from their sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import cut
from polyfed.core.metric import computed, figure, listed
from polyfed.core.problem import Problem

Row = NDArray[np.float64]  # one figure for each metric of a whole split, in their order
KEPT = 1 << 22  # numbers: so many clients' own moments are kept, to find out who spoiled a figure
Reasons = dict[str, dict[str, str]]  # objective -> metric -> why there is no figure
Bounds = dict[str, dict[str, list[float]]]  # objective -> metric -> the least and the largest value


class SplitTotals:
    """Statistics of a split, of which the sum is kept, and as long as they are few the clients' own moments.

    Args:
        problem: whose metrics.
        each: whether every client's own figures are computed, too, before its statistics go.
    """

    def __init__(self, problem: Problem, *, each: bool = False) -> None:
        self.problem, self._each = problem, each
        self.counts = torch.zeros(problem.dims["C"], dtype=torch.int64)
        self.moments = torch.zeros(problem.dims["S"], dtype=torch.float64)
        self._rows: list[Row] = []
        self._own: list[Tensor] = []
        self._left = KEPT // max(len(self.moments), 1)  # clients whose moments can still be kept
        self._failed: dict[tuple[int, str], str] = {}

    def add(self, arrays: Mapping[str, Tensor]) -> None:
        """Some clients' statistics, clients first; nothing where the problem has no such metrics."""
        if "counts" not in arrays:
            return
        counts, moments = arrays["counts"], arrays["moments"]
        self.counts += counts.sum(0)
        self.moments += moments.sum(0)
        self._keep(moments)
        if self._each:
            self._rows += [self._figures(c, m)[0] for c, m in zip(counts, moments, strict=True)]

    def _keep(self, moments: Tensor) -> None:
        self._left -= len(moments)
        self._own = [] if self._left < 0 else self._own
        if self._left >= 0 and len(self.moments):
            self._own.append(moments.clone())

    def row(self) -> Row:
        """The figures of all clients together; NaN for those that `not_computed` names."""
        found, self._failed = self._figures(self.counts, self.moments)
        return found

    def rows(self, clients: int) -> NDArray[np.float64]:
        """Each client's own figures (clients, metrics)."""
        return np.stack(self._rows) if self._rows else np.zeros((clients, 0))

    def bounds(self) -> Bounds:
        """What the figures lie between, for metrics that round."""
        found: Bounds = {}
        for k, name, metric, mine in computed(self.problem, self.counts, self.moments):
            if metric.bounds is not None:
                found.setdefault(self.problem.names[k], {})[name] = figure(metric.bounds, mine, numbers=2)[0]
        return found

    def not_computed(self) -> Reasons:
        """Why figures of all clients together could not be computed, once there is a `row`."""
        found: Reasons = {}
        for (k, name), why in self._failed.items():
            found.setdefault(self.problem.names[k], {})[name] = why
        return found

    def spoilers(self) -> dict[int, str]:
        """Who spoiled a figure, by its place among those whose statistics were added, and why.

        Those from whose own moments it cannot be computed, either; else those without whom it can be. Where that is
        over half of them, it is nobody's fault but the function's.
        """
        found: dict[int, str] = {}
        every = torch.cat(self._own) if self._own else self.moments[None, :0]
        for (k, name), why in self._failed.items() if every.shape[1] else ():
            alone = [i for i, own in enumerate(every) if self._fails(k, name, own)]
            bad = alone or [i for i, own in enumerate(every) if not self._fails(k, name, self.moments - own)]
            if 2 * len(bad) <= len(every):
                whose = f"the metric {name!r} of {self.problem.names[k]!r}"
                found |= dict.fromkeys(bad, f"with its statistics {whose} cannot be computed ({cut(why, 150)})")
        return found

    def _fails(self, k: int, name: str, moments: Tensor) -> bool:
        every = computed(self.problem, self.counts, moments)
        return any(figure(m.compute, mine)[1] for at, own, m, mine in every if (at, own) == (k, name) and not m.counts)

    def _figures(self, counts: Tensor, moments: Tensor) -> tuple[Row, dict[tuple[int, str], str]]:
        """Of all metrics, and why there are none."""
        found: list[float] = []
        failed: dict[tuple[int, str], str] = {}
        for k, name, metric, mine in computed(self.problem, counts, moments):
            (value,), why = figure(metric.compute, mine)
            found.append(value)
            failed |= {(k, name): why} if why else {}
        return np.array(found, dtype=np.float64), failed


def by_objective(problem: Problem, row: Row) -> Iterator[tuple[str, str, float]]:
    """Objective, metric and figure."""
    for (k, name, _), value in zip(listed(problem), row.tolist(), strict=True):
        yield problem.names[k], name, value


def defined(value: float) -> bool:
    """Whether there is a figure: one client's rows may all be of one class."""
    return not math.isnan(value)
