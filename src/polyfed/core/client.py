"""A client as its work sees it. There are two kinds of work, and so two views of a client.

Work with gradients may be run for many clients at once, so nothing in it is a Python decision on data. Work on rows
gets a client's examples as they are, one client at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from polyfed.core.problem import Batch, Problem

ClientState = Mapping[str, Tensor]  # what a client remembers between rounds
Carry = TypeVar("Carry")


class Client(Protocol):
    """Who a client is.

    n is the number of training examples and holds says, per objective, whether the client has data for it (1 or 0);
    fractions is n_is / n_i, which part of its examples has a label for it: the same where no label is missing. key
    seeds all its randomness of this round, common_key is the same for all clients of a round; exchange is the number of
    this request in the round.
    """

    @property
    def problem(self) -> Problem: ...

    @property
    def id(self) -> Any: ...

    @property
    def key(self) -> Any: ...

    @property
    def common_key(self) -> Any: ...

    @property
    def exchange(self) -> Any: ...

    @property
    def n(self) -> Any: ...

    @property
    def holds(self) -> Tensor: ...

    @property
    def fractions(self) -> Tensor: ...


class GradientClient(Client, Protocol):
    """A client for work that trains or measures the model.

    The gradient operators and the loop belong to the engine: one client after another with plain autograd, or a hundred
    as one program. allowed says, per objective, whether the client's rows, of any split, may have labels for it (1 or
    0).
    """

    @property
    def allowed(self) -> Tensor: ...

    def grad(
        self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, *, losses: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient of sum_s omega_s f_s over the objectives held, the losses f (M,), and the buffers after.

        losses: whether they are wanted; else those with omega_s = 0 may be left out, as 0.
        """
        ...

    def jacobian(
        self, x: Tensor, buffers: Tensor, batch: Batch, *, train: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of all objectives (M, d), 0 for those not held, the losses (M,), and the buffers after.

        train: whether in training mode, or, to measure, in evaluation mode (no dropout, BatchNorm's statistics as they
        are).
        """
        ...

    def measure(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        """Sums over the batch of every objective's loss and metrics (K,), in evaluation mode."""
        ...

    def measure_split(self, x: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and the statistics of metrics of a whole split: counts (C,) and moments (S,)."""
        ...

    def loop(
        self,
        step: Callable[[Carry, Batch, int], Carry],
        carry: Carry,
        *,
        batch_size: int,
        steps: int = 0,
        epochs: int = 0,
        split: str = "train",
        shuffle: bool = True,
        draw: int = 0,
    ) -> Carry:
        """Fold `step` over batches: so many steps, or so many passes over the rows; batch_size 0 is all rows.

        All loops of a round see the same batches, unless they are of another draw.
        """
        ...


class RowClient(Client, Protocol):
    """A client for work on its examples as they are; scratch may be kept until the next request, or not."""

    @property
    def scratch(self) -> dict[str, Any]: ...

    def data(self, split: str = "train") -> Batch:
        """All rows of a split at once."""
        ...


def all_finite(*values: Tensor) -> bool:
    """One pass over each array and one number in the end: NaN and infinity survive a minimum and a maximum.

    Arrays of one type on one device share that number, because asking a GPU for one takes longer than finding it.
    """
    extremes: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for value in values:
        if value.is_floating_point() and value.numel():
            extremes.setdefault((value.dtype, value.device), []).extend(torch.aminmax(value))
    return all(bool(torch.isfinite(torch.stack(found)).all()) for found in extremes.values())
