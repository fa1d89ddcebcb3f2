"""A `Client` that stands for all clients of a chunk at once, under vmap: their batches, keys and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from polyfed.core import tensorkeys
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation, Index, Rows
from polyfed.core.keys import other
from polyfed.core.problem import Batch, Problem
from polyfed.core.structure import Nested
from polyfed.engines.batched.stacked import Stacked

Carry = TypeVar("Carry")
Question = tuple[str, int]  # a split, and a batch size or 0


class Sizes:
    """What a program's shape takes from the sizes of its clients: loosely, so that it serves other cohorts, too.

    asked: the questions that a program put. Whatever has the same answers to them has the same program.
    """

    def __init__(self, lengths: Mapping[str, Index], most: Mapping[str, int]) -> None:
        self._lengths, self._most = lengths, most  # rows of every client here, by split; the most that any client has
        self.asked: set[Question] = set()

    def most(self, split: str) -> int:
        """Rows of the largest client, rounded up to a quarter of a power of two."""
        return self.answer((split, 0))

    def fewest(self, split: str, size: int) -> int:
        """Batches a pass of whoever has several, but the fewest, rounded down to a power of two."""
        return self.answer((split, size))

    def answer(self, question: Question) -> int:
        self.asked.add(question)
        split, size = question
        if split not in self._lengths:
            raise BadInput(f"No client has {split} rows.")
        lengths = self._lengths[split]
        if size:
            several = -(-lengths[lengths > size] // size)
            return 1 << int(several.min()).bit_length() - 1 if len(several) else 2
        most = max(1, int(lengths.max()))
        quarter = max(1, 1 << most.bit_length() >> 3)
        return min(-(-most // quarter) * quarter, max(1, self._most[split]))


class Loop(NamedTuple):
    """What a loop is asked for: all that its rows follow from, besides the client."""

    batch_size: int
    steps: int
    epochs: int
    split: str
    shuffle: bool
    draw: int

    def shape(self, sizes: Sizes) -> tuple[int, int]:
        """How many batches there are, and how many rows each has."""
        most = sizes.most(self.split)
        size = min(self.batch_size or most, most)
        return self.steps or self.epochs * -(-most // size), size


@dataclass
class ManyClients:
    """A `Client` under vmap: what is one client's is a tensor that stands for one row of all of theirs.

    sizes are host numbers of the whole chunk, from which the number and shape of the batches follow. streams are the
    batches of x that the host has read, where x is streamed.
    """

    problem: Problem
    federation: Federation
    stacked: Stacked | Any
    id: Tensor
    key: Tensor
    common_key: Tensor
    exchange: Tensor
    n: Tensor
    holds: Tensor
    fractions: Tensor
    allowed: Tensor
    place: dict[str, tuple[Tensor, Tensor]]  # split -> start and length of its rows
    sizes: Sizes
    streams: Mapping[Loop, Sequence[Nested]] = field(default_factory=dict)

    def grad(
        self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, *, losses: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = self.stacked.grad(x, buffers, omega, self.holds, batch)
        return found

    def jacobian(
        self, x: Tensor, buffers: Tensor, batch: Batch, *, train: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = self.stacked.jacobian(x, buffers, self.holds, batch, train)
        return found

    def measure(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        return self.stacked.measure(x, buffers, self.allowed, batch)

    def measure_split(self, x: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        return self.stacked.measure_split(x, buffers, self.allowed, batch)

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
        asked = Loop(batch_size, steps, epochs, split, shuffle, draw)
        total, size = asked.shape(self.sizes)
        rows, masks = self.rows(asked)
        x = self.streams[asked] if self.federation.streamed else [None] * total
        for i in range(total):
            batch = self._augmented(self._gather(rows[i], masks[i], x[i]), i, split, shuffle, draw)
            new = step(carry, batch, i)
            carry = new if steps else self._while(i < epochs * self._passes(split, size), new, carry)
        return carry

    def rows(self, asked: Loop) -> tuple[Tensor, Tensor]:
        """The rows of every batch of a loop (total, size), and which of them are no padding."""
        total, size = asked.shape(self.sizes)
        order = self._order(asked.split, total, asked.epochs, size, asked.shuffle, asked.draw)
        return self._batches(order, asked.split, total, size)

    def _passes(self, split: str, size: int) -> Tensor:
        return ((self.place[split][1] + size - 1) // size).clamp(min=1)

    def _order(self, split: str, total: int, epochs: int, size: int, shuffle: bool, draw: int) -> Tensor:
        """Positions among the client's rows, pass by pass (passes, rows); of one batch the order does not matter."""
        most = self.sizes.most(split)
        plain = torch.arange(most, device=self.key.device)
        if not shuffle or most <= size:
            return plain.unsqueeze(0)
        length = self.place[split][1]
        many = epochs or (1 if total <= 2 else -(-total // self.sizes.fewest(split, size)))
        shuffled = [self._permutation(epoch, most, length, draw) for epoch in range(many)]
        return torch.where(self._passes(split, size) > 1, torch.stack(shuffled), plain)

    def _permutation(self, epoch: int, most: int, length: Tensor, draw: int) -> Tensor:
        """`keys.permutation` of the first `length` positions; the padding sorts to the end."""
        of = tensorkeys.key(self.key, "batch", epoch, *other(draw))
        z = tensorkeys.shift(tensorkeys.bits(of, most), 1)
        beyond = torch.arange(most, device=z.device) >= length
        return torch.sort(torch.where(beyond, torch.iinfo(torch.int64).max, z), stable=True).indices

    def _batches(self, order: Tensor, split: str, total: int, size: int) -> tuple[Tensor, Tensor]:
        """The rows of every batch (total, size), and which of them are no padding: one program, not one a step."""
        start, length = self.place[split]
        in_pass = self._passes(split, size)
        i = torch.arange(total, device=start.device).unsqueeze(1)
        place = (i % in_pass) * size + torch.arange(size, device=start.device)
        epoch = (i // in_pass).clamp(max=len(order) - 1)
        position = order.reshape(-1)[epoch * order.shape[1] + place.clamp(max=order.shape[1] - 1)]
        rows: Rows = getattr(self.federation, split)
        row = torch.as_tensor(rows.order)[(start + torch.minimum(position, length - 1)) % len(rows.order)]
        return row, (place < length).to(self.problem.dtype)

    def _gather(self, rows: Tensor, mask: Tensor, x: Nested = None) -> Batch:
        return self.federation.taken(lambda t: t[rows], mask, x)

    def _augmented(self, batch: Batch, i: int, split: str, shuffle: bool, draw: int) -> Batch:
        if self.federation.augment is None or split != "train" or not shuffle:
            return batch
        of = tensorkeys.key(self.key, "augment", i, *other(draw))
        return batch._replace(x=self.federation.augment(batch.x, of))

    def _while(self, active: Tensor, new: Carry, old: Carry) -> Carry:
        """A client whose passes are over keeps what it has."""
        kept: Carry = pytree.tree_map(lambda a, b: torch.where(active, a, b), new, old)
        return kept
