"""A reader that keeps what it read first, as long as there is room: small data are read from their files once."""

from __future__ import annotations

import threading
import weakref
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from polyfed.core.federation import Federation
from polyfed.core.source import Index
from polyfed.core.structure import Nested, leaves, mapped

MOST = 64 << 20  # bytes that all readers of a process keep together


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
        self._places: Index | None = None  # of each row, where it is kept, counted from 1; 0 where it is not
        self._rows: Nested = None
        self._capacity = self._used = 0
        self._lock = threading.Lock()

    def find(self, rows: Index) -> Tensor | None:
        """Where some rows are kept, if all of them are: then `kept` has them, without reading."""
        places = None if self._places is None else self._places[rows]
        return None if places is None or not places.all() else torch.from_numpy(places - 1)

    def kept(self, places: Tensor) -> Nested:
        """The x of rows that are kept in these places."""
        return mapped(lambda t: t.index_select(0, places.to(t.device)), self._rows)

    def __call__(self, rows: Index) -> Nested:
        """The x of some rows."""
        if (found := self.find(rows)) is not None:
            return self.kept(found)
        places = np.zeros_like(rows) if self._places is None else self._places[rows]
        new = rows[places == 0]
        x = self._federation.read(new)
        self._keep(new, x)
        if len(new) == len(rows):
            return x
        return pytree.tree_map(partial(_merged, places=torch.from_numpy(places - 1)), self._rows, x)

    def _keep(self, rows: Index, x: Nested) -> None:
        with self._lock:
            if self._places is None:
                self._begin(x)
            assert self._places is not None
            _, which = np.unique(rows, return_index=True)
            which = which[self._places[rows[which]] == 0][: self._capacity - self._used]
            if not len(which):
                return
            at = slice(self._used, self._used + len(which))
            for own, t in zip(leaves(self._rows), leaves(x), strict=True):
                own[at] = t[torch.from_numpy(which)]
            self._used = at.stop
            self._places[rows[which]] = np.arange(at.start, at.stop) + 1  # last: others look without the lock

    def _begin(self, x: Nested) -> None:
        """Makes room, once it is known what a row is like; pages that are never written take no memory."""
        each = sum(t[0].numel() * t.element_size() for t in leaves(x))
        room = ROOM
        self._capacity = room.take(self._federation.size, each)
        self._rows = mapped(lambda t: t.new_empty((self._capacity, *t.shape[1:])), x)
        self._places = np.zeros(self._federation.size, dtype=np.int64)
        weakref.finalize(self, room.give, self._capacity * each)


def _merged(kept: Tensor, read: Tensor, *, places: Tensor) -> Tensor:
    """Rows that were kept, and rows that were read as they were not (-1), in their order."""
    made = read.new_empty((len(places), *read.shape[1:]))
    places = places.to(read.device)
    fresh = places < 0
    made[fresh] = read
    made[~fresh] = kept[places[~fresh]]
    return made
