"""Data sets and partitions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.core.registry import Registry
from polyfed.core.structure import Nested, length, mapped, names_of


@dataclass(frozen=True)
class Dataset:
    """Examples, the objectives people train on them, and what clients can be made from.

    Args:
        x: one row per example: an array, or a dict, tuple or list of them.
        targets: for each objective, one row per example.
        objectives: what is trained.
        train: the first so many rows are for the clients, the rest are the server's test data; None: all are the
            clients'.
        labels: what label-skewed partitions go by (a composite label where there are several objectives).
        keys: natural owners of rows (user, sensor, ...), one number per row.
        columns: more about every row, by name, for losses and metrics that take them.
        prepare: turns a raw batch of x into the model's input, so that x can stay in the small type it is stored in.
        minimiser: of the one objective, from what every row counts in it to x*, where it is known exactly.
    """

    x: Nested
    targets: Mapping[str, NDArray[Any]]
    objectives: tuple[Objective, ...]
    train: int | None = None
    labels: NDArray[Any] | None = None
    keys: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    prepare: Callable[[Any], Any] | None = None
    minimiser: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None

    @property
    def rows(self) -> int:
        """How many rows are for the clients."""
        return length(self.x) if self.train is None else self.train


datasets: Registry[Callable[..., Any]] = Registry("dataset", __name__)
partitions: Registry[Callable[..., Any]] = Registry("partition", __name__)


def sample(dataset: Dataset) -> Tensor:
    """One prepared example, for its shape; a sentence where examples are of several arrays."""
    x = mapped(lambda t: torch.from_numpy(np.asarray(t[:1])), dataset.x)
    made = dataset.prepare(x) if dataset.prepare else x
    if isinstance(made, Tensor):
        return made
    raise BadInput(
        "This takes examples of one array, and those of the data set have several. "
        f"Found {names_of(made)}; choose a model that takes them, or data of one array."
    )
