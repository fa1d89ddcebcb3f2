"""One client whose loop is a Python loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from polyfed.client.ahead import read_ahead
from polyfed.client.autograd import Autograd
from polyfed.client.kept import Kept
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation, Index
from polyfed.core.interrupt import may_go_on
from polyfed.core.keys import key, other, permutation
from polyfed.core.problem import Batch, Problem

Carry = TypeVar("Carry")


@dataclass
class LoopClient:
    """A `Client` whose loop is a Python loop."""

    id: int
    key: int
    common_key: int
    exchange: int
    n: int
    holds: Tensor
    fractions: Tensor
    allowed: Tensor
    held: list[bool]  # what it holds, for the host
    measured: list[bool]  # what it may have labels for, for the host
    problem: Problem
    federation: Federation
    on_device: Federation  # the same with its arrays on the device
    place: int
    autograd: Autograd
    reader: Kept | None = None  # of x, where it is streamed
    scratch: dict[str, Any] = field(default_factory=dict)

    def data(self, split: str = "train") -> Batch:
        return self.federation.take(torch.from_numpy(self.federation.rows(split, self.place)))

    def grad(
        self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, *, losses: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.autograd.grad(x, buffers, batch, omega, self.held, losses=losses)

    def jacobian(
        self, x: Tensor, buffers: Tensor, batch: Batch, *, train: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.autograd.jacobian(x, buffers, batch, self.held, train=train)

    def measure(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        return self.autograd.measure(x, buffers, batch, self.measured)

    def measure_split(self, x: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        return self.autograd.measure_split(x, buffers, batch, self.measured)

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
        rows = self.federation.rows(split, self.place)
        if not len(rows):
            raise BadInput(f"client {self.id} has no {split} rows")
        per_epoch = -(-len(rows) // (batch_size or len(rows)))
        augment = self.federation.augment if shuffle and split == "train" else None  # never when measuring
        batches = self._batches(rows, batch_size, steps or epochs * per_epoch, shuffle, draw)
        with closing(self._taken(batches)) as taken:
            for i, batch in enumerate(taken):
                if augment is not None:
                    batch = batch._replace(x=augment(batch.x, key(self.key, "augment", i, *other(draw))))
                carry = step(carry, batch, i)
                may_go_on()
        return carry

    def _taken(self, batches: Iterator[Index]) -> Generator[Batch]:
        """The examples of each batch; of a source read ahead, while `prepare`, the user's own, stays in this thread."""
        if self.reader is None:
            for index in batches:
                yield self.on_device.take(torch.from_numpy(index))
            return
        with closing(read_ahead(self.reader, batches)) as found:
            for index, x in found:
                yield self.on_device.take(torch.from_numpy(index), x=x)

    def _batches(self, rows: Index, batch_size: int, steps: int, shuffle: bool, draw: int) -> Iterator[Index]:
        """Pass after pass over the rows, each in a fresh order, cut into batches; the last of a pass may be smaller."""
        size = batch_size or len(rows)
        cuts = range(0, len(rows), size)
        shuffle = shuffle and len(cuts) > 1  # of one batch the order does not matter
        for epoch in range(-(-steps // len(cuts))):
            of = key(self.key, "batch", epoch, *other(draw))
            order = rows[permutation(of, len(rows))] if shuffle else rows
            for start in cuts[: steps - epoch * len(cuts)]:
                yield order[start : start + size]
