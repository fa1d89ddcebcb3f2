"""A `Client` that stands for all clients of a chunk at once, under vmap: their batches, keys and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from polyfed import tensorkeys
from polyfed.engines.stacked import Stacked
from polyfed.federation import Federation, Index, Rows
from polyfed.problem import Batch, Problem

Carry = TypeVar("Carry")


class Bounds(NamedTuple):
    """Of the rows of a chunk's clients in a split: no client has fewer or more. The shape of a program follows."""

    least: int
    most: int

    @staticmethod
    def of(lengths: Index, every: Index) -> Bounds:
        """Loose ones, so that many cohorts have the same, but no looser than those of all clients."""
        most = int(lengths.max())
        quarter = max(1, 1 << most.bit_length() >> 3)
        return Bounds(int(every.min()), min(-(-most // quarter) * quarter, int(every.max())))


class Sizes:
    """Bounds by split; remembers for which splits it was asked."""

    def __init__(self, bounds: Mapping[str, Bounds]) -> None:
        self._bounds = bounds
        self.asked: set[str] = set()

    def __getitem__(self, split: str) -> Bounds:
        self.asked.add(split)
        return self._bounds[split]


@dataclass
class ManyClients:
    """A `Client` under vmap: what is one client's is a tensor that stands for one row of all of theirs.

    sizes are host numbers of the whole chunk, from which the number and shape of the batches follow.
    """

    problem: Problem
    federation: Federation
    stacked: Stacked
    id: Tensor
    key: Tensor
    common_key: Tensor
    n: Tensor
    holds: Tensor
    place: dict[str, tuple[Tensor, Tensor]]  # split -> start and length of its rows
    sizes: Sizes

    def grad(self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        g, losses = self.stacked.grad(x, omega, self.holds, batch)
        return g, losses, buffers

    def jacobian(self, x: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        J, losses = self.stacked.jacobian(x, self.holds, batch)
        return J, losses, buffers

    def measure(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        return self.stacked.measure(x, self.holds, batch)

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
    ) -> Carry:
        most = self.sizes[split].most
        size = min(batch_size or most, most)
        total = steps or epochs * -(-most // size)
        rows, masks = self._batches(split, total, size, shuffle)
        for i in range(total):
            batch = self._augmented(self._gather(rows[i], masks[i]), i, split, shuffle)
            new = step(carry, batch, i)
            carry = new if steps else self._while(i < epochs * self._passes(split, size), new, carry)
        return carry

    def _passes(self, split: str, size: int) -> Tensor:
        return (self.place[split][1] + size - 1) // size

    def _order(self, split: str, total: int, size: int, shuffle: bool) -> Tensor:
        """Positions among the client's rows, pass by pass (passes, rows); of one batch the order does not matter."""
        least, most = self.sizes[split]
        plain = torch.arange(most, device=self.key.device)
        if not shuffle or most <= size:
            return plain.unsqueeze(0)
        length = self.place[split][1]
        many = -(-total // max(2, -(-least // size)))  # by whoever has several batches a pass, but the fewest
        shuffled = [self._permutation(epoch, most, length) for epoch in range(many)]
        return torch.where(self._passes(split, size) > 1, torch.stack(shuffled), plain)

    def _permutation(self, epoch: int, most: int, length: Tensor) -> Tensor:
        """`keys.permutation` of the first `length` positions; the padding sorts to the end."""
        z = tensorkeys.shift(tensorkeys.bits(tensorkeys.key(self.key, "batch", epoch), most), 1)
        beyond = torch.arange(most, device=z.device) >= length
        return torch.sort(torch.where(beyond, torch.iinfo(torch.int64).max, z), stable=True).indices

    def _batches(self, split: str, total: int, size: int, shuffle: bool) -> tuple[Tensor, Tensor]:
        """The rows of every batch (total, size), and which of them are no padding: one program, not one a step."""
        order = self._order(split, total, size, shuffle)
        start, length = self.place[split]
        in_pass = self._passes(split, size)
        i = torch.arange(total, device=start.device).unsqueeze(1)
        place = (i % in_pass) * size + torch.arange(size, device=start.device)
        epoch = (i // in_pass).clamp(max=len(order) - 1)
        position = order.reshape(-1)[epoch * order.shape[1] + place.clamp(max=order.shape[1] - 1)]
        rows: Rows = getattr(self.federation, split)
        row = torch.as_tensor(rows.order)[(start + torch.minimum(position, length - 1)) % len(rows.order)]
        return row, (place < length).to(self.problem.dtype)

    def _gather(self, rows: Tensor, mask: Tensor) -> Batch:
        f = self.federation
        x = f.x[rows]
        return Batch(f.prepare(x) if f.prepare else x, {name: t[rows] for name, t in f.targets.items()}, mask)

    def _augmented(self, batch: Batch, i: int, split: str, shuffle: bool) -> Batch:
        if self.federation.augment is None or split != "train" or not shuffle:
            return batch
        return batch._replace(x=self.federation.augment(batch.x, tensorkeys.key(self.key, "augment", i)))

    def _while(self, active: Tensor, new: Carry, old: Carry) -> Carry:
        """A client whose passes are over keeps what it has."""
        kept: Carry = pytree.tree_map(lambda a, b: torch.where(active, a, b), new, old)
        return kept
