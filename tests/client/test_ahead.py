"""Reading ahead, and keeping what was read: in order, within bounds, and nothing is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch
from torch import Tensor

from polyfed import BadInput, Federation
from polyfed.client import ahead, kept
from polyfed.client.ahead import read_ahead
from polyfed.client.kept import Kept, Room
from polyfed.core.source import Index, Source


class Slow(Source):
    """Takes a while for some rows, and notes what was read and by whom."""

    def __init__(self, rows: int = 400, bad: int = -1) -> None:
        self.rows, self.bad = rows, bad
        self.read_rows: list[int] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.rows

    def read(self, rows: Index) -> Tensor:
        self.threads.add(threading.current_thread().name)
        if self.bad in rows:
            raise OSError("no more")
        time.sleep(0.002 * (rows[0] % 3))
        self.read_rows += rows.tolist()
        return torch.from_numpy(rows.astype(np.float32))[:, None]


def federation(source: Source) -> Federation:
    return Federation.from_arrays(source, np.zeros(len(source)), clients=4)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROOM", Room(0))


def batches(many: int, size: int = 10) -> Iterator[Index]:
    return (np.arange(i * size, (i + 1) * size) for i in range(many))


@pytest.mark.usefixtures("no_room")
def test_batches_come_in_order_read_by_other_threads_which_end() -> None:
    source = Slow()
    before = threading.active_count()
    for i, (index, x) in enumerate(read_ahead(Kept(federation(source)), batches(20))):
        assert index[0] == 10 * i
        assert x[:, 0].tolist() == index.tolist()
    assert i == 19
    assert threading.active_count() == before
    assert threading.current_thread().name not in source.threads


@pytest.mark.usefixtures("no_room")
def test_only_some_batches_are_read_ahead_and_of_large_ones_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for room, depth in ((1 << 20, ahead.AHEAD), (50, 1)):
        monkeypatch.setattr(ahead, "MOST", room)
        source = Slow()
        with closing(read_ahead(Kept(federation(source)), batches(20))) as found:
            for _ in range(3):
                next(found)
            time.sleep(0.05)
            assert len(source.read_rows) <= 10 * (3 + depth)
        assert len(source.read_rows) < 100


@pytest.mark.usefixtures("no_room")
def test_an_error_comes_in_its_place() -> None:
    found = read_ahead(Kept(federation(Slow(bad=55))), batches(20))
    for _ in range(5):
        next(found)
    with pytest.raises(OSError, match="no more"):
        next(found)
    assert list(found) == []


def test_what_is_kept_is_read_once_and_by_this_thread() -> None:
    source = Slow()
    reader = Kept(federation(source))
    first = [x for _, x in read_ahead(reader, batches(20))]
    again = [x for _, x in read_ahead(reader, batches(20))]
    assert all(map(torch.equal, first, again))
    assert sorted(source.read_rows) == list(range(200))
    mixed = np.array([199, 250, 3])
    assert reader(mixed)[:, 0].tolist() == mixed.tolist()
    assert reader.find(mixed) is not None


def test_readers_of_a_process_share_the_room_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    each = 4
    room = Room(450 * each)
    monkeypatch.setattr(kept, "ROOM", room)
    one, other = (Kept(federation(Slow())) for _ in range(2))
    for _ in range(2):
        for reader in (one, other):
            for index in batches(40):
                assert reader(index)[:, 0].tolist() == index.tolist()
    assert one.find(np.arange(400)) is not None
    assert other.find(np.arange(50)) is not None
    assert other.find(np.arange(60)) is None
    assert other(np.array([390, 3, 390]))[:, 0].tolist() == [390, 3, 390]
    assert room.left == 0
    del one, other, reader
    assert room.left == 450 * each


def test_a_row_that_is_not_finite_is_never_kept() -> None:
    class Broken(Slow):
        def read(self, rows: Index) -> Tensor:
            return super().read(rows).masked_fill(torch.from_numpy(rows == 7)[:, None], torch.inf)

    reader = Kept(federation(Broken()))
    for _ in range(2):
        with pytest.raises(BadInput, match="row 7"):
            reader(np.arange(10))
