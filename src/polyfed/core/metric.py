"""Metrics of a whole split: additive statistics of its rows, and one number from their sum.

A mean adds up over batches and clients; the area under a curve does not. So clients send statistics that do add up
(histograms, confusion counts, moments), and the server computes the figure from their sum.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput, cut, nearest, shown

if TYPE_CHECKING:
    from polyfed.core.problem import Batch, Problem

Statistics = NDArray[np.float64]


@dataclass(frozen=True)
class SplitMetric:
    """A figure of all rows of a split together, such as the area under the ROC curve: two functions.

    Args:
        update: of (output, target, mask) of a batch, and of the columns that `takes` names: statistics of the rows
            whose mask is 1, a tensor of the same shape for every batch. Those of two batches, and of two clients, are
            added up. It may be run for many clients at once (`torch.func.vmap`): no Python decision on data, no
            boolean indexing.
        compute: of the statistics' sum, a NumPy array of float64: the figure; NaN where it is not defined. Where it
            fails, the figure is NaN, too, and the round's line says why (`not_computed`).
        shape: the statistics' shape, a number or several.
        better: 'higher' or 'lower'.
        counts: whether all statistics are whole numbers from 0 to the number of rows. They then travel as integers,
            and the server refuses others.
        times: of counts, how many of them one row adds to at most: 1 for a histogram. Their sum is then at most that
            many times the rows; if not given, only each one is bounded.
        takes: columns of the data that `update` gets after the mask.
        bounds: of the statistics' sum: the least and the largest value that the figure can have, where `compute`
            rounds, because rows were put into bins.
        classes: how many classes 'target' has, and how many groups a column, where they are known: their numbers
            should be 0, 1, ..., a column's also -1 for none. Others are refused before the first round.
    """

    update: Callable[..., Tensor]
    compute: Callable[[Statistics], float]
    shape: int | tuple[int, ...]
    better: Literal["higher", "lower"]
    counts: bool = False
    takes: Sequence[str] = ()
    bounds: Callable[[Statistics], tuple[float, float]] | None = None
    times: int | None = None
    classes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else self.shape
        if not isinstance(shape, tuple) or not all(type(k) is int and k > 0 for k in shape):
            raise BadInput(f"SplitMetric: shape should be a number from 1, or several. Found {shown(self.shape)}.")
        if isinstance(self.takes, str) or not all(isinstance(name, str) for name in self.takes):
            raise BadInput(f"SplitMetric: takes should be a tuple of columns' names. Found {shown(self.takes)}.")
        for name in ("update", "compute"):
            if not callable(getattr(self, name)):
                raise BadInput(f"SplitMetric: {name} should be a function. Found {shown(getattr(self, name))}.")
        if self.better not in ("higher", "lower"):
            raise BadInput(f"SplitMetric: better should be 'higher' or 'lower'. Found {shown(self.better)}.")
        if self.times is not None and not (self.counts and type(self.times) is int and self.times > 0):
            raise BadInput(
                f"SplitMetric: times, of counts, should be a whole number from 1. Found {shown(self.times)}."
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "takes", tuple(self.takes))

    @property
    def size(self) -> int:
        """How many statistics there are."""
        return math.prod(self.shape) if isinstance(self.shape, tuple) else self.shape


def split_statistics(
    problem: Problem, outputs: Any, batch: Batch, holds: Sequence[bool] | Tensor, like: Tensor
) -> tuple[Tensor, Tensor]:
    """A batch's statistics for all metrics of a whole split: counts (C,) as int64 and moments (S,) as float64.

    Args:
        problem: whose metrics.
        outputs: the module's, for the batch.
        batch: the rows.
        holds: which objectives the client holds, as a tensor where it stands for many clients; others have zeros.
        like: a tensor on the device.
    """
    found: dict[bool, list[Tensor]] = {True: [], False: []}
    for k, name, metric in listed(problem):
        dtype = torch.int64 if metric.counts else torch.float64
        if isinstance(holds, Tensor):
            part = torch.where(holds[k] > 0, _updated(problem, k, name, outputs, batch, like).to(dtype), 0)
        elif holds[k]:
            part = _updated(problem, k, name, outputs, batch, like).to(dtype)
        else:
            part = torch.zeros(metric.size, dtype=dtype, device=like.device)
        found[metric.counts].append(part)
    empty = {counts: torch.zeros(0, dtype=t, device=like.device) for counts, t in KINDS.items()}
    counts, moments = (torch.cat([empty[kind], *found[kind]]) for kind in (True, False))
    return counts, moments


KINDS = {True: torch.int64, False: torch.float64}  # whether a metric counts, and the type that its statistics have


def listed(problem: Problem) -> Iterator[tuple[int, str, SplitMetric]]:
    """All metrics of a whole split in the order of their statistics, with their objectives' places and their names."""
    for k, objective in enumerate(problem.objectives):
        for name, metric in objective.over_split.items():
            yield k, name, metric


def computed(problem: Problem, counts: Tensor, moments: Tensor) -> Iterator[tuple[int, str, SplitMetric, Statistics]]:
    """Every metric of a whole split and its own statistics, as `compute` wants them."""
    left = {True: counts.double().numpy(), False: moments.double().numpy()}
    for k, name, metric in listed(problem):
        mine, left[metric.counts] = np.split(left[metric.counts], [metric.size])
        yield k, name, metric, mine.reshape(metric.shape)


def figure(function: Callable[[Statistics], Any], statistics: Statistics, numbers: int = 1) -> tuple[list[float], str]:
    """The numbers that a metric's function makes of statistics, and ''; NaN, and why, where it fails.

    One client's statistics may be what no function expects: that must not end a run.
    """
    try:
        with np.errstate(all="ignore"):
            found: list[float] = np.asarray(function(statistics), dtype=np.float64).reshape(numbers).tolist()
        return found, ""
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return [math.nan] * numbers, f"{cut(f'{type(error).__name__}: {error}', 120)} ({last.name}, line {last.lineno})"


def _updated(problem: Problem, k: int, name: str, outputs: Any, batch: Batch, like: Tensor) -> Tensor:
    """A metric's statistics of a batch, flat; the target is None for a loss that takes none, where there is none."""
    metric, own = problem.objectives[k].over_split[name], problem.names[k]
    if missing := next((column for column in metric.takes if column not in batch.columns), None):
        raise BadInput(
            f"Objective {own!r}: the metric {name!r} takes the column {missing!r}, which the data does not have: give "
            f"Federation(columns={{{missing!r}: ...}}).{nearest(missing, batch.columns)}"
        )
    needed = "target" in problem.objectives[k].takes
    target = problem.target(k, batch.targets) if needed else batch.targets.get("", batch.targets.get(own))
    mask = batch.counted(own)
    mask = torch.ones(batch.rows, device=like.device) if mask is None else mask
    columns = [batch.columns[column] for column in metric.takes]
    found = metric.update(problem.output(k, outputs), target, mask.to(problem.dtype), *columns)
    if not isinstance(found, Tensor) or found.shape != metric.shape:
        seen = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise BadInput(
            f"Objective {own!r}: the statistics of the metric {name!r} should be a tensor of shape {metric.shape}. "
            f"Found {seen}."
        )
    return found.reshape(-1)
