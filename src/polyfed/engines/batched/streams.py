"""Streamed data for a program of many clients: which loops its work asks for, and their batches, read by the host.

A program cannot read files. So work is tried once on batches of zeros, which shows its loops. Then the host computes
their rows from the same keys, reads them, and passes the batches to the program as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from polyfed.client.ahead import THREADS
from polyfed.client.kept import Kept
from polyfed.core.federation import Federation
from polyfed.core.problem import Batch, Problem
from polyfed.core.source import Index
from polyfed.core.structure import Nested, leaves, mapped
from polyfed.engines.batched.manyclients import Loop, ManyClients, Sizes

Carry = TypeVar("Carry")
MOST = 256 << 20  # bytes of streamed batches that a program gets at once
Mine = Mapping[str, Any]  # what `ManyClients` knows of each client
NOBODY = torch.zeros((), dtype=torch.int64)


@dataclass
class Asking(ManyClients):
    """Clients whose loops are one step long, on zeros, and noted.

    Args:
        row: one example, for its shape and types.
        found: the loops that were asked for.
    """

    row: Nested = None
    found: list[Loop] = field(default_factory=list)

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
        if asked not in self.found:
            self.found.append(asked)
        _, size = asked.shape(self.sizes)
        blank = mapped(lambda t: t.new_zeros((size, *t.shape[1:])), self.row)
        rows = torch.zeros(size, dtype=torch.int64)
        batch = self._gather(rows, torch.ones(size, dtype=self.problem.dtype), blank)
        return step(carry, self._augmented(batch, 0, split, shuffle, draw), 0)


class Blank:
    """Gradient operators that compute nothing, in the place of `Stacked`."""

    def __init__(self, problem: Problem) -> None:
        self._dims = problem.dims

    def grad(
        self, x: Tensor, buffers: Tensor, omega: Tensor, holds: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        return torch.zeros_like(x), torch.zeros_like(holds), buffers

    def jacobian(
        self, x: Tensor, buffers: Tensor, holds: Tensor, batch: Batch, train: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return x.new_zeros(len(holds), len(x)), torch.zeros_like(holds), buffers

    def measure(self, x: Tensor, buffers: Tensor, holds: Tensor, batch: Batch) -> Tensor:
        return x.new_zeros(self._dims["K"])

    def measure_split(self, x: Tensor, buffers: Tensor, holds: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        counts = torch.zeros(self._dims["C"], dtype=torch.int64)
        return x.new_zeros(self._dims["K"]), counts, torch.zeros(self._dims["S"], dtype=torch.float64)


class Streams:
    """Reads the batches of a model's clients.

    Args:
        problem: the model and its objectives.
        federation: the clients' data, on the host.
    """

    def __init__(self, problem: Problem, federation: Federation) -> None:
        self.problem, self.federation = problem, federation
        self._blank, self._row, self._read = Blank(problem), None, Kept(federation)
        self._known: dict[Any, tuple[Loop, ...]] = {}

    def asking(self, found: list[Loop], sizes: Sizes) -> Callable[..., Asking]:
        """A client that notes its loops, of what `ManyClients` knows of one."""

        def client(**known: Any) -> Asking:
            about = self.problem, self.federation, self._blank
            return Asking(*about, sizes=sizes, row=self.row, found=found, **known)

        return client

    def loops(self, what: Any, ask: Callable[[], Sequence[Loop]]) -> tuple[Loop, ...]:
        """The loops of some work, asked for once.

        Args:
            what: the work with its options.
            ask: tries it.
        """
        if what not in self._known:
            if len(self._known) >= 256:  # options that change every round
                self._known.clear()
            self._known[what] = tuple(ask())
        return self._known[what]

    @property
    def row(self) -> Nested:
        """One example as it is read."""
        if self._row is None:
            client = int(np.flatnonzero(self.federation.examples)[0])
            self._row = self.federation.read(self.federation.rows("train", client)[:1])
        return self._row

    def bytes(self, loops: Sequence[Loop], sizes: Sizes) -> int:
        """How much a client's batches of some loops take."""
        one = sum(t.numel() * t.element_size() for t in leaves(self.row))
        return sum(total * size for total, size in (loop.shape(sizes) for loop in loops)) * one

    def read(
        self, loops: Sequence[Loop], clients: Sequence[int], mine: Mine, sizes: Sizes
    ) -> tuple[tuple[list[Nested], ...], dict[int, str]]:
        """For each loop its batches, each of all clients (clients, size, ...); and whose could not be read, and why."""
        failed: dict[int, str] = {}
        with ThreadPoolExecutor(THREADS, "polyfed-read") as pool:
            made = [self._batches(rows, clients, failed, pool) for rows in self._rows(loops, mine, sizes)]
        return tuple(made), failed

    def _rows(self, loops: Sequence[Loop], mine: Mine, sizes: Sizes) -> list[Index]:
        """The rows of all batches of a loop (clients, total, size), by the program's own words on the host; below 0
        where a client has none."""

        def one(mine: Mine) -> tuple[Tensor, ...]:
            about = self.problem, self.federation, self._blank
            client = ManyClients(*about, common_key=NOBODY, exchange=NOBODY, sizes=sizes, **mine)
            found = ((loop, *client.rows(loop)) for loop in loops)
            return tuple(torch.where(client.place[loop.split][1] > 0, rows, -1) for loop, rows, _ in found)

        return [rows.numpy() for rows in torch.func.vmap(one)(mine)]

    def _batches(
        self, rows: Index, clients: Sequence[int], failed: dict[int, str], pool: ThreadPoolExecutor
    ) -> list[Nested]:
        """One loop's."""
        many, total, size = rows.shape
        made = mapped(lambda t: t.new_zeros((total, many, size, *t.shape[1:])), self.row)
        places = leaves(made)

        def fill(c: int) -> None:
            if clients[c] in failed or rows[c, 0, 0] < 0:
                return
            some, where = np.unique(rows[c], return_inverse=True)  # a row once, of several passes and of padding
            try:
                found = leaves(self._read(some))
                for place, t in zip(places, found, strict=True):
                    place[:, c] = t[torch.from_numpy(where.reshape(total, size))]
            except Exception as error:  # a client that fails is an answer, not the end of the run
                failed[clients[c]] = f"{type(error).__name__}: {error}"

        list(pool.map(fill, range(many)))
        return [mapped(itemgetter(i), made) for i in range(total)]
