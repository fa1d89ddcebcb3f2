"""Processes that share a runner of work: forked, so that data is shared without copying, users' functions too."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from polyfed.client.memory import Job
from polyfed.core.client import ClientState
from polyfed.core.errors import BadInput, RunStopped
from polyfed.core.messages import Reply, Request, decode, encode
from polyfed.engines.local.channel import Channel

Runner = Callable[[Job], tuple[Reply, ClientState | None]]

AHEAD = 2  # jobs a worker holds: one to do, one to begin without waiting for us
WINDOW = 8  # jobs a worker may be ahead of the oldest unfinished one: bounds what waits to be yielded in order


class _Worker:
    def __init__(self, context: Any, runner: Runner, earlier: list[Connection]) -> None:
        self.channel, theirs = Channel.pair(context, 2 * AHEAD + 1, AHEAD + 1)  # a job is at most two messages
        self.pipe: Any = self.channel.pipe
        # a worker closes its copies of our ends of the pipes: then our death is an end of file to all of them
        self.process = context.Process(target=_serve, args=(runner, theirs, [*earlier, self.pipe]), daemon=True)
        self.process.start()
        theirs.pipe.close()
        self.busy: deque[int] = deque()
        self._shared: Mapping[str, Tensor] | None = None

    def send(self, number: int, job: Job) -> None:
        """The arrays that all clients share are sent once a request, then only what is this client's own."""
        if not self.busy:
            self.channel.rewind()
        if job.request.shared is not self._shared:
            self._shared = job.request.shared
            self._send(encode({"shared": True}, self._shared))
        state = {f"state.{name}": a for name, a in (job.state or {}).items()}
        head = {"client": job.client, "state": job.state is not None, **job.request.head()}
        self._send(encode(head, {**job.request.own_arrays(), **state}))
        self.busy.append(number)

    def _send(self, message: bytes) -> None:
        try:
            self.channel.send(message)
        except OSError:
            raise self._died() from None

    def receive(self) -> tuple[int, Reply, ClientState | None]:
        try:
            head, arrays = decode(self.channel.receive())
        except (EOFError, OSError):
            raise self._died() from None
        state = _taken(arrays, "state.")
        return self.busy.popleft(), Reply(arrays, head["error"]), state if head["state"] else None

    def _died(self) -> RunStopped:
        self.process.join(timeout=1)
        code = self.process.exitcode
        return RunStopped(f"A worker process died (exit code {code}; -9 is often a lack of memory).")


class Pool:
    """An ordered map over jobs; several may be under way, from several threads or one inside the other."""

    def __init__(self, runner: Runner, workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise BadInput("engine.workers above 1 needs a system that can fork (Linux, macOS); use workers = 1.")
        context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(_Worker(context, runner, [w.pipe for w in self._workers]))
        self._lock = threading.Lock()
        self._numbers = count()
        self._done: dict[int, tuple[Reply, ClientState | None]] = {}
        self._unwanted: set[int] = set()

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Reply, ClientState | None]]:
        """Results in the order of the jobs, whoever is fastest."""
        waiting = iter(jobs)
        begun: deque[tuple[int, Job]] = deque()
        try:
            while self._feed(waiting, begun) or begun:
                if not begun:  # every worker is busy for somebody else
                    with self._lock:
                        self._collect()
                    continue
                number, job = begun[0]
                reply, state = self._result(number)
                begun.popleft()
                yield job, reply, state
        except GeneratorExit:  # whoever stops listening early does not want the rest
            with self._lock:
                self._unwanted.update(number for number, _ in begun if self._done.pop(number, None) is None)
            raise

    def _feed(self, jobs: Iterator[Job], begun: deque[tuple[int, Job]]) -> bool:
        """Give every worker what it can hold; false when there is nothing left to give."""
        with self._lock:
            while (worker := self._free(len(begun))) is not None:
                job = next(jobs, None)
                if job is None:
                    return False
                begun.append((next(self._numbers), job))
                worker.send(*begun[-1])
            return True

    def _free(self, begun: int) -> _Worker | None:
        worker = min(self._workers, key=lambda w: len(w.busy))
        return worker if len(worker.busy) < AHEAD and begun < WINDOW * len(self._workers) else None

    def _result(self, number: int) -> tuple[Reply, ClientState | None]:
        """The answer to one job; whoever waits collects for everybody."""
        while True:
            with self._lock:
                if number in self._done:
                    return self._done.pop(number)
                self._collect()

    def _collect(self) -> None:
        pipes = {worker.pipe: worker for worker in self._workers if worker.busy}
        for pipe in wait(list(pipes)) if pipes else ():  # somebody else may have collected meanwhile
            number, reply, state = pipes[pipe].receive()
            if number in self._unwanted:
                self._unwanted.remove(number)
            else:
                self._done[number] = reply, state

    def close(self) -> None:
        for worker in self._workers:
            worker.channel.close()
            worker.process.join(timeout=0 if worker.busy else 5)
            if worker.process.is_alive():
                worker.process.kill()


def _serve(runner: Runner, channel: Channel, others: list[Connection]) -> None:
    """A worker's life: until the channel closes, do jobs. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    shared: dict[str, Tensor] = {}
    with contextlib.suppress(OSError):  # nobody is left to answer to
        while (message := inbox.get()) is not None:
            head, arrays = decode(message)
            if "shared" in head:
                shared = arrays
            else:
                channel.send(_answer(runner, head, arrays, shared))


def _listen(channel: Channel, inbox: queue.SimpleQueue[bytes | None]) -> None:
    """Reads on while a reply is being written: two ends that both wait to write would wait forever."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            inbox.put(channel.receive())
    inbox.put(None)


def _answer(runner: Runner, head: dict[str, Any], arrays: dict[str, Tensor], shared: dict[str, Tensor]) -> bytes:
    state = _taken(arrays, "state.")
    request = Request.of(head, arrays, shared)
    reply, new = runner(Job(head["client"], request, state if head["state"] else None))
    kept = {f"state.{name}": a for name, a in (new or {}).items()}
    return encode({"error": reply.error, "state": new is not None}, {**reply.arrays, **kept})


def _taken(arrays: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Takes the arrays of one kind out of those they travelled with."""
    return {name.removeprefix(prefix): arrays.pop(name) for name in list(arrays) if name.startswith(prefix)}
