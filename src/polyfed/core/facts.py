"""What follows from a problem alone about honest replies: which losses are never negative, what an accuracy adds up to,
and where the buffers' vector holds variances."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.metric import listed
from polyfed.core.problem import Problem, absolute_error, accuracy, binary_accuracy, nearest_accuracy

SHARES = (accuracy, binary_accuracy, nearest_accuracy)  # from 0 to 1 an example
NATS = ("cross-entropy", "binary", "cross-entropy-of-sigmoid")  # losses with a unit, whatever the data


@dataclass(frozen=True)
class Facts:
    """What is known of a problem's replies.

    Args:
        positive: objectives whose losses are never negative: all named ones.
        nats: objectives whose losses have a unit.
        least, most: of each measured value, what an example may add to its sum.
        objective: of each measured value, whose it is.
        tallies: of each metric of counts over a whole split: how many there are, whose they are, and what a row adds to
            their sum at most.
        buffers: the names of the buffers, in the order of their vector.
        pieces: of each entry of that vector, which buffer it belongs to.
        variances: the entries that are BatchNorm's variances.
    """

    positive: NDArray[np.bool_]
    nats: NDArray[np.bool_]
    least: NDArray[np.float64]
    most: NDArray[np.float64]
    objective: NDArray[np.int64]
    tallies: tuple[tuple[int, int, float], ...]
    buffers: tuple[str, ...]
    pieces: Tensor
    variances: Tensor

    @classmethod
    def of(cls, problem: Problem) -> Facts:
        """The facts of a problem, put together once."""
        found = _known.get(problem)
        if found is None or found.buffers != tuple(problem.buffers):
            found = _known[problem] = cls._found(problem)
        return found

    @classmethod
    def _found(cls, problem: Problem) -> Facts:
        every = [(k, name, o, m.function) for k, o in enumerate(problem.objectives) for name, m in o.measured.items()]
        share = [function in SHARES for *_, function in every]
        positive = [
            function in (*SHARES, absolute_error) or (name == "loss" and isinstance(o.loss, str))
            for _, name, o, function in every
        ]
        sizes = torch.tensor([b.numel() for b in problem.buffers.values()], dtype=torch.int64)
        pieces = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        spread = torch.tensor([name.endswith("running_var") for name in problem.buffers], dtype=torch.bool)
        return cls(
            positive=np.array([isinstance(o.loss, str) for o in problem.objectives]),
            nats=np.array([o.loss in NATS for o in problem.objectives]),
            least=np.where(positive, 0.0, -np.inf),
            most=np.where(share, 1.0, np.inf),
            objective=np.array([k for k, *_ in every]),
            tallies=tuple((m.size, k, float(m.times or m.size)) for k, _, m in listed(problem) if m.counts),
            buffers=tuple(problem.buffers),
            pieces=pieces,
            variances=torch.nonzero(spread[pieces]).reshape(-1) if len(sizes) else pieces,
        )


_known: WeakKeyDictionary[Problem, Facts] = WeakKeyDictionary()
