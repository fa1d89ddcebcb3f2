"""Processes that share a bench: forked, so that data is shared without copying and a user's functions come along."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyfed.client import State
from polyfed.errors import BadInput, RunStopped
from polyfed.messages import Reply, Request, decode, encode

if TYPE_CHECKING:
    from polyfed.engines.bench import Bench, Job

AHEAD = 2  # jobs a worker holds: one to do, one to begin without waiting for us
WINDOW = 8  # jobs a worker may be ahead of the oldest unfinished one: bounds what waits to be yielded in order


class _Worker:
    def __init__(self, context: Any, bench: Bench) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(bench, theirs, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()
        self.busy: deque[int] = deque()
        self._shared: Mapping[str, Tensor] | None = None

    def send(self, number: int, job: Job) -> None:
        """The arrays that all clients share are sent once a request, then only what is this client's own."""
        if job.request.shared is not self._shared:
            self._shared = job.request.shared
            self.pipe.send_bytes(encode({"shared": True}, self._shared))
        state = {f"state.{name}": a for name, a in (job.state or {}).items()}
        head = {"client": job.client, "state": job.state is not None, **job.request.head()}
        own = {name: a for name, a in job.request.arrays().items() if name not in job.request.shared}
        self.pipe.send_bytes(encode(head, {**own, **state}))
        self.busy.append(number)

    def receive(self) -> tuple[int, Reply, State | None]:
        try:
            head, arrays = decode(self.pipe.recv_bytes())
        except EOFError:
            self.process.join()
            raise RunStopped(
                f"A worker process died (exit code {self.process.exitcode}; -9 is often a lack of memory). "
                "Resume with fewer engine.workers."
            ) from None
        state = _state(arrays)
        return self.busy.popleft(), Reply(arrays, head["error"]), state if head["state"] else None


class Pool:
    """An ordered map over jobs."""

    def __init__(self, bench: Bench, workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise BadInput("engine.workers above 1 needs a system that can fork (Linux, macOS); use workers = 1.")
        context = multiprocessing.get_context("fork")
        self._workers = [_Worker(context, bench) for _ in range(workers)]
        self._lock = threading.Lock()

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Reply, State | None]]:
        """Results in the order of the jobs, whoever is fastest."""
        with self._lock:
            try:
                yield from self._ordered(enumerate(jobs))
            finally:  # whoever stops listening early leaves nothing behind for the next request
                while any(worker.busy for worker in self._workers):
                    self._collect()

    def _ordered(self, jobs: Iterator[tuple[int, Job]]) -> Iterator[tuple[Job, Reply, State | None]]:
        begun: dict[int, Job] = {}
        done: dict[int, tuple[Reply, State | None]] = {}
        turn = 0
        while self._feed(jobs, begun) or begun:
            if turn not in done:
                done.update(self._collect())
            while turn in done:
                yield begun.pop(turn), *done.pop(turn)
                turn += 1

    def _feed(self, jobs: Iterator[tuple[int, Job]], begun: dict[int, Job]) -> bool:
        """Give every worker what it can hold; false when there is nothing left to give."""
        while (worker := self._free(len(begun))) is not None:
            number, job = next(jobs, (-1, None))
            if job is None:
                return False
            begun[number] = job
            worker.send(number, job)
        return True

    def _free(self, begun: int) -> _Worker | None:
        worker = min(self._workers, key=lambda w: len(w.busy))
        return worker if len(worker.busy) < AHEAD and begun < WINDOW * len(self._workers) else None

    def _collect(self) -> dict[int, tuple[Reply, State | None]]:
        pipes = {worker.pipe: worker for worker in self._workers if worker.busy}
        answers = [pipes[pipe].receive() for pipe in wait(list(pipes))]
        return {number: (reply, state) for number, reply, state in answers}

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):  # it may be dead already
                worker.pipe.send_bytes(b"")
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()


def _serve(bench: Bench, pipe: Connection, parent: int) -> None:
    """A worker's life: until the pipe closes, do jobs. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, inbox, parent), daemon=True).start()
    shared: dict[str, Tensor] = {}
    while (message := inbox.get()) is not None:
        head, arrays = decode(message)
        if "shared" in head:
            shared = arrays
        else:
            pipe.send_bytes(_answer(bench, head, arrays, shared))


def _listen(pipe: Connection, inbox: queue.SimpleQueue[bytes | None], parent: int) -> None:
    """Reads on while a reply is being written: two ends that both wait to write would wait forever.

    A parent that was killed closes nothing, as its other workers hold copies of the pipe: a new parent tells.
    """
    message = b"go on"
    while message and os.getppid() == parent:
        if pipe.poll(0.5):
            message = _received(pipe)
            inbox.put(message or None)
    inbox.put(None)


def _received(pipe: Connection) -> bytes:
    try:
        return pipe.recv_bytes()
    except (EOFError, OSError):
        return b""


def _answer(bench: Bench, head: dict[str, Any], arrays: dict[str, Tensor], shared: dict[str, Tensor]) -> bytes:
    state = _state(arrays)
    seed, round, exchange, folded = arrays.pop("when").tolist()
    request = Request(head["work"], shared, arrays, head["options"], seed, round, exchange, torch.tensor(folded))
    reply, new = bench(head["client"], request, state if head["state"] else None)
    kept = {f"state.{name}": a for name, a in (new or {}).items()}
    return encode({"error": reply.error, "state": new is not None}, {**reply.arrays, **kept})


def _state(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Takes the state out of the arrays it travelled with."""
    return {name[6:]: arrays.pop(name) for name in list(arrays) if name.startswith("state.")}
