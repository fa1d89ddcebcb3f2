"""What changes below the folder, told to all who listen: one look a second for everybody, and none for nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from polyfed.view.listing import Change, Folder

EVERY = 1.0  # seconds between looks
SHARE = 0.02  # of a processor that looking may take: a folder that is slow to look through is looked at less often
LISTENERS = 64


class Listener:
    """One open page: the changes that it has not been sent; a slow one gets the newest of each run, and no queue.

    Args:
        change: what it is told first: everything.
    """

    def __init__(self, change: Change) -> None:
        self._news = asyncio.Event()
        self._rows = {row["id"]: row for row in change.rows}
        self._groups = {row["id"]: row for row in change.groups}
        self._gone = set[str]()
        self._news.set()
        self.over = False

    def tell(self, change: Change) -> None:
        for id in change.gone:
            self._rows.pop(id, None)
            self._groups.pop(id, None)
            self._gone.add(id)
        self._rows |= {row["id"]: row for row in change.rows}
        self._groups |= {row["id"]: row for row in change.groups}
        self._gone -= {*self._rows, *self._groups}
        self._news.set()

    def end(self) -> None:
        """The server stops."""
        self.over = True
        self._news.set()

    async def next(self, patience: float) -> Change | None:
        """The next changes; None where there are none for `patience` seconds.

        Args:
            patience: seconds.
        """
        try:
            await asyncio.wait_for(self._news.wait(), patience)
        except TimeoutError:
            return None
        self._news.clear()
        change = Change([*self._rows.values()], [*self._groups.values()], sorted(self._gone))
        self._rows, self._groups, self._gone = {}, {}, set()
        return change


class Watcher:
    """Looks at a folder while anybody listens.

    Args:
        folder: the folder.
        every: seconds between looks.
    """

    def __init__(self, folder: Folder, every: float = EVERY) -> None:
        self.folder, self.every = folder, every
        self._lock = threading.Lock()
        self._listeners = set[Listener]()
        self._coming = 0  # who waits for the first look
        self._task: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether nobody else may listen."""
        return len(self._listeners) + self._coming >= LISTENERS

    @property
    def watching(self) -> bool:
        """Whether it looks at all: while anybody listens."""
        return self._task is not None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Listener]:
        """A listener that is told everything first, then what changes."""
        self._coming += 1
        try:
            await self._look()
        finally:
            self._coming -= 1
        rows, groups = self.folder.rows.copy(), self.folder.groups.copy()  # at once: another look may be under way
        listener = Listener(Change([*rows.values()], [*groups.values()]))
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    def close(self) -> None:
        """Let everybody go, so that the server can stop."""
        for listener in self._listeners:
            listener.end()

    async def _look(self) -> float:
        """A look in a thread; what it found is told to all. How long a processor took."""
        change, took = await asyncio.to_thread(self._change)
        if change:
            for listener in self._listeners:
                listener.tell(change)
        return took

    def _change(self) -> tuple[Change, float]:
        with self._lock:  # two pages may open at once
            began = time.thread_time()
            return self.folder.look(), time.thread_time() - began

    async def _watch(self) -> None:
        while True:
            took = await self._look()
            await asyncio.sleep(max(self.every, took / SHARE - took))
