"""The server's side of metrics over a whole split: statistics added up as they come, and figures from their sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.metric import computed, figure, listed
from polyfed.core.problem import Problem

Row = NDArray[np.float64]  # one figure for each metric of a whole split, in their order
Bounds = dict[str, dict[str, list[float]]]  # objective -> metric -> the least and the largest value


class SplitTotals:
    """Statistics of a split, of which only the sum is kept.

    Args:
        problem: whose metrics.
        each: whether every client's own figures are computed, too, before its statistics go.
    """

    def __init__(self, problem: Problem, *, each: bool = False) -> None:
        self.problem, self._each = problem, each
        self.counts = torch.zeros(problem.dims["C"], dtype=torch.int64)
        self.moments = torch.zeros(problem.dims["S"], dtype=torch.float64)
        self._rows: list[Row] = []

    def add(self, arrays: Mapping[str, Tensor]) -> None:
        """Some clients' statistics, clients first; nothing where the problem has no such metrics."""
        if "counts" not in arrays:
            return
        counts, moments = arrays["counts"], arrays["moments"]
        self.counts += counts.sum(0)
        self.moments += moments.sum(0)
        if self._each:
            self._rows += [self._figures(c, m) for c, m in zip(counts, moments, strict=True)]

    def row(self) -> Row:
        """The figures of all clients together."""
        return self._figures(self.counts, self.moments)

    def rows(self, clients: int) -> NDArray[np.float64]:
        """Each client's own figures (clients, metrics)."""
        return np.stack(self._rows) if self._rows else np.zeros((clients, 0))

    def bounds(self) -> Bounds:
        """What the figures lie between, for metrics that round."""
        found: Bounds = {}
        for k, name, metric, mine in computed(self.problem, self.counts, self.moments):
            if metric.bounds is not None:
                whose = self._whose(k, name)
                low, high = figure(metric.bounds, mine, whose)
                found.setdefault(self.problem.names[k], {})[name] = [float(low), float(high)]
        return found

    def _figures(self, counts: Tensor, moments: Tensor) -> Row:
        every = computed(self.problem, counts, moments)
        found = [float(figure(metric.compute, mine, self._whose(k, name))) for k, name, metric, mine in every]
        return np.array(found, dtype=np.float64)

    def _whose(self, k: int, name: str) -> str:
        return f"{name!r} of objective {self.problem.names[k]!r}"


def by_objective(problem: Problem, row: Row) -> Iterator[tuple[str, str, float]]:
    """Objective, metric and figure."""
    for (k, name, _), value in zip(listed(problem), row.tolist(), strict=True):
        yield problem.names[k], name, value


def defined(value: float) -> bool:
    """Whether there is a figure: one client's rows may all be of one class."""
    return not math.isnan(value)
