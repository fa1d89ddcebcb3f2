"""A stretch of clients behind a Ray worker, or, when that is lost, behind the next one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from polyfed.core.errors import RunStopped
from polyfed.core.interrupt import may_go_on
from polyfed.core.messages import Request, encode
from polyfed.core.tree import flatten
from polyfed.engines.ray.worker import Rows, merged

TURN = 0.5  # seconds that are waited at a time, at most
BEGIN = 300.0  # seconds that a worker has to begin in


class Shard:
    """Some clients' worker, which is replaced when it dies, is stopped, or keeps a client's work for too long.

    Ray holds what clients keep, by reference: a new worker starts from what has arrived here.

    Args:
        ray: the connection.
        begin: starts a worker and says when it has begun: the actor, and a reference.
        timeout: seconds that a worker may take for a client; 0 for any time.
        together: whether clients' work is done together, so that nobody knows at whose it ended.
    """

    def __init__(self, ray: Any, begin: Callable[[], tuple[Any, Any]], timeout: float, together: bool = False) -> None:
        self.ray, self._begin, self.timeout, self.together = ray, begin, timeout, together
        self.actor, self.begun = begin()
        self._turn = min(TURN, timeout / 4) if timeout else TURN
        self._lock = threading.RLock()
        self._base: Any = None  # what clients remembered at a checkpoint
        self._kept: dict[tuple[str, int], Any] = {}  # part and client -> what it remembers
        self._sent: dict[str, tuple[int, list[tuple[Any, Rows]]]] = {}  # part -> round, and its exchanges
        self._streams: list[Stream] = []  # exchanges under way; the worker is at the first

    def exchange(self, call: str, request: Request, shared: Any, rows: Rows, keeps: bool) -> Stream:
        """Begins one.

        Args:
            call: the worker's method, 'ask' or 'sum'.
            request: what is asked.
            shared: a reference to the arrays that all clients get.
            rows: the clients, with their own parts of the request.
            keeps: whether clients keep states with it.
        """
        part, round = request.part, request.round
        with self._lock:
            if self._sent.get(part, (None,))[0] != round:
                self._sent[part] = round, []
            self._sent[part][1].append((shared, rows))
            stream = Stream(self, call, part, shared, rows, keeps)
            self._streams.append(stream)
        return stream

    def leave(self, stream: Stream) -> None:
        """An exchange is over, or nobody listens any longer."""
        with self._lock, contextlib.suppress(ValueError):
            self._streams.remove(stream)

    def done(self, stream: Stream, items: Any, state: Any, message: bytes) -> bytes:
        """An item, unless it has come too late; the state that came before it is kept."""
        with self._lock:
            if items is not stream.items:
                return b""
            client = stream.done()
            if state is not None:
                self._kept[stream.part, client] = state
        return message

    def next(self, stream: Stream, items: Any, before: Any = None) -> Any:
        """A reference to the next of an exchange's items, or None when there are others now, of another worker.

        Items end with an error: where there are no more, it is the one before.
        """
        while items is stream.items:
            begun = time.monotonic()
            ready, _ = self.ray.wait([items], timeout=self._turn, fetch_local=False)
            may_go_on()
            spent = min(time.monotonic() - begun, self._turn)  # had we been stopped ourselves, it would be no fault
            with self._lock:
                if items is not stream.items:
                    return None
                if ready:
                    stream.waited = 0.0
                    if reference := next(items, before):
                        return reference
                    self.lost(items, "its worker process died")
                elif self._streams[0] is stream:
                    stream.waited += spent
                    if 0 < self.timeout <= stream.waited:
                        self.lost(items, f"did not answer within {self.timeout:g} s")
        return None

    def get(self, items: Any, reference: Any) -> bytes | None:
        """What a reference stands for; None when its worker is lost."""
        errors = self.ray.exceptions
        try:
            item: bytes = self.ray.get(reference, timeout=self.timeout or None)
            return item
        except errors.GetTimeoutError:
            self.lost(items, f"did not answer within {self.timeout:g} s")
        except (errors.RayActorError, errors.WorkerCrashedError, errors.ObjectLostError, errors.OutOfMemoryError):
            self.lost(items, "its worker process died")
        except errors.RayError as error:
            raise failed(error) from error
        return None

    def lost(self, items: Any, why: str) -> None:
        """A new worker, unless there is one already; the client that the old one was at has failed."""
        with self._lock:
            if not any(stream.items is items for stream in self._streams):
                return
            self._streams[0].blame(why)
            self.ray.kill(self.actor)
            self.actor, begun = self._begin()
            try:
                self.ray.get(begun, timeout=BEGIN)
                self._restore()
            except self.ray.exceptions.RayError as error:
                raise failed(error) from error
            for stream in self._streams:
                stream.issue()

    def _restore(self) -> None:
        trees = self._trees()
        done = [self.actor.load.remote(*trees)] if trees else []
        done += [self.actor.remind.remote(*sent) for _, exchanges in self._sent.values() for sent in exchanges]
        self.ray.get(done, timeout=BEGIN)

    def _trees(self) -> list[Any]:
        """References to what clients remember."""
        return [tree for tree in (self._base, *self._kept.values()) if tree is not None]

    def tree(self) -> dict[str, dict[str, Any]]:
        """What the clients of every part remember."""
        try:
            return merged(self.ray.get(self._trees()))
        except self.ray.exceptions.RayError as error:
            raise failed(error) from error

    def load(self, tree: dict[str, dict[str, Any]]) -> None:
        """Back to a checkpoint."""
        self._base, self._kept, self._sent = self.ray.put(encode({}, flatten(tree))), {}, {}
        try:
            self.ray.get(self.actor.load.remote(self._base))
        except self.ray.exceptions.RayError as error:
            raise failed(error) from error


class Stream:
    """One exchange with a shard's clients, through as many workers as it takes.

    Clients whose worker was lost are in `lost`, with the reason.
    """

    def __init__(self, shard: Shard, call: str, part: str, shared: Any, rows: Rows, keeps: bool) -> None:
        self._shard, self._call, self.part, self._shared, self._keeps = shard, call, part, shared, keeps
        self._rows, self._at = list(rows), 0  # those to do, and how many of them are done
        self.lost: dict[int, str] = {}
        self.issue()

    def issue(self) -> None:
        """Asks the shard's worker; of a sum, for everything."""
        if self._call == "ask":
            self._rows = self._rows[self._at :]
        self._at, self.waited, self.items = 0, 0.0, None
        if self._rows:
            self.items = getattr(self._shard.actor, self._call).remote(self._shared, self._rows, self._keeps)

    def blame(self, why: str) -> None:
        """The client whose work is being done is left out; of those that go together the first, then all that are left.

        Whose work it was that ended two workers in one exchange, a third should not have to find out.
        """
        stop = None if self._shard.together and self.lost else self._at + 1
        self.lost |= {client: why for client, _ in self._rows[self._at : stop]}
        del self._rows[self._at : stop]

    def reply(self, client: int) -> bytes:
        """The next client's; nothing when it is lost."""
        while client not in self.lost:
            if message := self._item():
                return message
        return b""

    def total(self) -> bytes:
        """The sum of all clients that are not lost; nothing when all are."""
        while self._rows:
            if message := self._item():
                return message
        return b""

    def _item(self) -> bytes:
        """The next item's message; or nothing, and try again."""
        items = self.items
        state = self._shard.next(self, items) if self._keeps else None
        reference = self._shard.next(self, items, state)
        item = None if reference is None else self._shard.get(items, reference)
        return b"" if item is None else self._shard.done(self, items, state, item)

    def done(self) -> int:
        """The next client is done, this one."""
        self._at += 1
        if self._at == len(self._rows):
            self.close()
        return self._rows[self._at - 1][0]

    def close(self) -> None:
        """No more of it is wanted."""
        self._shard.leave(self)


def failed(error: Exception) -> RunStopped:
    """An error of Ray's as a sentence."""
    why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    return RunStopped(f"A Ray worker failed ({why[0]}). Resume when the cluster is well again.")
