"""Pulling replies from Flower's Grid so that nobody is waited for: each by itself, some at a time, aside.

A Grid's `pull_messages` blocks for minutes on a reply whose sender announced it and never uploads it, and raises over
bytes that it cannot unpack, which would lose the replies pulled with them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

AT_ONCE = 8  # pulls, beside those that block
BLOCKED = 1.0  # seconds after which a pull counts as one that blocks
LOOK = 0.25  # seconds that one look for replies may take

Came = list["Message | Exception"]  # nothing, a reply, or what Flower raised over it


class Pulls:
    """Pulls that are under way. A Grid that says `prompt = True` never blocks, and is asked here and now."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self._prompt = grid, bool(getattr(grid, "prompt", False))
        self._begun: dict[str, float] = {}  # message id -> when its pull was begun
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[str, Came | BaseException]] = queue.SimpleQueue()
        self._workers = 0

    def __call__(self, ids: Iterable[str]) -> dict[str, Message | Exception]:
        """What has come of these replies. A SuperLink that is gone, or refuses, is raised.

        Args:
            ids: of the messages that they answer.
        """
        if self._prompt:
            return {i: one for i in ids for one in self._pull(i)}
        asked = dict.fromkeys(ids)
        self._begin([i for i in asked if i not in self._begun])
        came: dict[str, Message | Exception] = {}
        until = time.monotonic() + LOOK
        while any(i in self._begun for i in asked) and (left := until - time.monotonic()) > 0:
            try:
                i, found = self._ended.get(timeout=left)
            except queue.Empty:
                break
            self._begun.pop(i, None)
            if isinstance(found, BaseException):
                raise found
            if found and i in asked:  # or it is late, and its exchange is over
                came[i] = found[0]
        return came

    def _begin(self, ids: list[str]) -> None:
        now = time.monotonic()
        self._begun |= dict.fromkeys(ids, now)
        for i in ids:
            self._wanted.put(i)
        blocked = sum(now - begun > BLOCKED for begun in self._begun.values())
        while self._workers < min(len(self._begun), AT_ONCE + blocked):
            self._workers += 1
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            i = self._wanted.get()
            try:
                self._ended.put((i, self._pull(i)))
            except BaseException as error:
                self._ended.put((i, error))

    def _pull(self, i: str) -> Came:
        from httpx import HTTPError, HTTPStatusError

        try:
            found: Came = [*self.grid.pull_messages([i])]
            return found[:1]
        except HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            return [error]  # the SuperLink stumbles over this reply, as a hostile one may have it do; not the run's end
        except (HTTPError, OSError):
            raise  # the SuperLink's
        except Exception as error:  # over a stranger's bytes: anything
            return [error]
