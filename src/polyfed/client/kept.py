"""A reader that keeps what it read first, as long as there is room: small data are read from their files once."""

from __future__ import annotations

import threading
import weakref
from functools import partial

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from polyfed.core.federation import Federation
from polyfed.core.source import Index
from polyfed.core.structure import Nested, leaves, mapped

MOST = 64 << 20  # bytes that all readers of a process keep together
EXTRA = 200  # bytes that a row takes besides its own, to be found again


class Room:
    """What is left of some bytes."""

    def __init__(self, left: int) -> None:
        self.left, self._lock = left, threading.Lock()

    def take(self, rows: int, each: int) -> int:
        """Room for so many rows, or for as many as there is."""
        with self._lock:
            found = min(rows, self.left // each)
            self.left -= found * each
        return found

    def give(self, size: int) -> None:
        with self._lock:
            self.left += size


ROOM = Room(MOST)


class Kept:
    """Reads x of a streamed federation, once for the rows that it keeps.

    Nothing is ever dropped for something newer: of passes over more rows than there is room for, that would keep just
    what is not needed next.

    Args:
        federation: the rows.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._places: dict[int, int] = {}  # row -> where it is kept
        self._rows: Nested = None
        self._capacity = 0
        self._lock = threading.Lock()

    def has(self, rows: Index) -> bool:
        """Whether all of some rows are kept, so that reading them takes no time."""
        return all(map(self._places.__contains__, rows.tolist()))

    def __call__(self, rows: Index) -> Nested:
        """The x of some rows."""
        places = torch.tensor([self._places.get(row, -1) for row in rows.tolist()])
        fresh = places < 0
        if not fresh.any():
            return mapped(lambda t: t.index_select(0, places.to(t.device)), self._rows)
        new = rows[fresh.numpy()]
        x = self._federation.read(new)
        self._keep(new, x)
        if len(new) == len(rows):
            return x
        return pytree.tree_map(partial(_merged, fresh=fresh, places=places), self._rows, x)

    def _keep(self, rows: Index, x: Nested) -> None:
        with self._lock:
            if self._rows is None:
                self._begin(x)
            if len(self._places) == self._capacity:
                return
            new = {row: i for i, row in enumerate(rows.tolist()) if row not in self._places}
            some = dict(list(new.items())[: self._capacity - len(self._places)])
            at = slice(len(self._places), len(self._places) + len(some))
            which = list(some.values())
            for own, t in zip(leaves(self._rows), leaves(x), strict=True):
                own[at] = t[which]
            self._places.update(zip(some, range(at.start, at.stop), strict=True))  # last: others look without the lock

    def _begin(self, x: Nested) -> None:
        """Makes room, once it is known what a row is like; pages that are never written take no memory."""
        each = EXTRA + sum(t[0].numel() * t.element_size() for t in leaves(x))
        room = ROOM
        self._capacity = room.take(self._federation.size, each)
        self._rows = mapped(lambda t: t.new_empty((self._capacity, *t.shape[1:])), x)
        weakref.finalize(self, room.give, self._capacity * each)


def _merged(kept: Tensor, read: Tensor, *, fresh: Tensor, places: Tensor) -> Tensor:
    """Rows that were kept and rows that were read, in their order."""
    made = read.new_empty((len(fresh), *read.shape[1:]))
    fresh, places = fresh.to(read.device), places.to(read.device)
    made[fresh] = read
    made[~fresh] = kept[places[~fresh]]
    return made
