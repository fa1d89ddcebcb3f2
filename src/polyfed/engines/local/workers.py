"""Processes that share a runner of work: forked, so that data is shared without copying, users' functions too.

A worker that dies, is stopped, or keeps its client's work for too long is replaced. That client has failed; what others
had been given to it is done by its successor. Clients remember nothing in a worker: states come and go with the jobs.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import queue
import threading
import time
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
from polyfed.core.interrupt import may_go_on
from polyfed.core.messages import Reply, Request, decode, encode
from polyfed.engines.local.channel import Channel
from polyfed.engines.local.nursery import Nursery, kill

Runner = Callable[[Job], tuple[Reply, ClientState | None]]

AHEAD = 2  # jobs a worker holds: one to do, one to begin without waiting for us
WINDOW = 8  # jobs a worker may be ahead of the oldest unfinished one: bounds what waits to be yielded in order
TURN = 0.5  # seconds that are waited at a time, at most
LINGER = 1.0  # seconds that a worker goes on for when nobody is left to answer to


class _Worker:
    def __init__(self, nursery: Nursery, place: int, memory: tuple[mmap.mmap, mmap.mmap], timeout: float) -> None:
        self._nursery, self._place, self._memory, self._timeout = nursery, place, memory, timeout
        self._start()

    def _start(self) -> None:
        try:
            self.pipe, self._pid = self._nursery.start(self._place)
        except (EOFError, OSError) as error:
            raise RunStopped("A worker process cannot be started: the process that starts them is gone.") from error
        self.channel = Channel(self.pipe, *self._memory, watched=self._watched)
        self.busy: deque[tuple[int, Job]] = deque()
        self.waited = 0.0  # seconds that we have waited for its next answer
        self._shared: Mapping[str, Tensor] | None = None

    @property
    def late(self) -> bool:
        return 0 < self._timeout <= self.waited

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """A large message passes in time, or the worker is killed, which ends the message."""
        timer = threading.Timer(self._timeout, self._give_up)
        if self._timeout:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self.waited = self._timeout
        kill(self._pid)

    def send(self, number: int, job: Job) -> None:
        """The arrays that all clients share are sent once a request, then only what is this client's own."""
        if not self.busy:
            self.channel.rewind()
        if job.request.shared is not self._shared:
            self._shared = job.request.shared
            self.channel.send(encode({"shared": True}, self._shared))
        state = {f"state.{name}": a for name, a in (job.state or {}).items()}
        head = {"client": job.client, "state": job.state is not None, **job.request.head()}
        self.channel.send(encode(head, {**job.request.own_arrays(), **state}))
        self.busy.append((number, job))

    def receive(self) -> tuple[int, Reply, ClientState | None]:
        head, arrays = decode(self.channel.receive(), ours=True)
        state = _taken(arrays, "state.")
        self.waited = 0.0
        return self.busy.popleft()[0], Reply(arrays, head["error"]), state if head["state"] else None

    def replace(self) -> tuple[str, deque[tuple[int, Job]]]:
        """A new process in the place of this one: what was wrong with it, and what it had been given."""
        left, late = self.busy, self.late
        self.pipe.close()
        code = self._end(grace=0.0 if late else LINGER)
        why = f"did not answer within {self._timeout:g} s" if late else ""
        self._start()
        return why or f"its worker process died (exit code {code}; -9 is often a lack of memory)", left

    def _end(self, grace: float) -> int:
        try:
            return self._nursery.end(self._pid, grace)
        except (EOFError, OSError) as error:
            raise RunStopped("A worker process cannot be replaced: the process that starts them is gone.") from error

    def close(self) -> None:
        if self.busy:
            kill(self._pid)
        self.channel.close()


class Pool:
    """An ordered map over jobs; several may be under way, from several threads or one inside the other.

    Args:
        runner: does a job, in a worker.
        workers: how many processes.
        timeout: seconds that a worker may take for a client; 0 for any time.
    """

    def __init__(self, runner: Runner, workers: int, timeout: float = 0.0) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise BadInput("engine.workers above 1 needs a system that can fork (Linux, macOS); use workers = 1.")
        memory = [Channel.memory(2 * AHEAD + 1, AHEAD + 1) for _ in range(workers)]  # a job is at most two messages

        def serve(place: int, pipe: Connection) -> None:
            into, out = memory[place]
            _serve(runner, Channel(pipe, out, into))

        self._nursery = Nursery(serve)
        self._turn = min(TURN, timeout / 4) if timeout else TURN
        self._workers = [_Worker(self._nursery, place, own, timeout) for place, own in enumerate(memory)]
        self._lock = threading.Lock()
        self._numbers = count()
        self._done: dict[int, tuple[Reply, ClientState | None, bool]] = {}
        self._unwanted: set[int] = set()

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Reply, ClientState | None, bool]]:
        """Results in the order of the jobs, whoever is fastest; last, whether the worker was lost with it."""
        waiting = iter(jobs)
        begun: deque[tuple[int, Job]] = deque()
        try:
            while self._feed(waiting, begun) or begun:
                if not begun:  # every worker is busy for somebody else
                    with self._lock:
                        self._collect()
                    continue
                number, job = begun[0]
                found = self._result(number)
                begun.popleft()
                yield job, *found
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
                self._send(worker, *begun[-1])
            return True

    def _free(self, begun: int) -> _Worker | None:
        worker = min(self._workers, key=lambda w: len(w.busy))
        return worker if len(worker.busy) < AHEAD and begun < WINDOW * len(self._workers) else None

    def _send(self, worker: _Worker, number: int, job: Job) -> None:
        try:
            worker.send(number, job)
        except OSError:  # it is gone, and does not yet have this job
            self._replace(worker)
            self._again(worker, number, job)

    def _again(self, worker: _Worker, number: int, job: Job) -> None:
        """To a worker that has just begun; were that lost, too, so would be the next."""
        try:
            worker.send(number, job)
        except OSError as error:
            why, _ = worker.replace()
            raise RunStopped(f"A worker process that had just been started was lost: it {why}.") from error

    def _replace(self, worker: _Worker) -> None:
        """The client whose work it was doing has failed; the others' is given to its successor."""
        why, left = worker.replace()
        if left:
            self._keep(left.popleft()[0], Reply(error=why), None, lost=True)
        for number, job in left:
            if number in self._unwanted:
                self._unwanted.remove(number)
            else:
                self._again(worker, number, job)

    def _result(self, number: int) -> tuple[Reply, ClientState | None, bool]:
        """The answer to one job; whoever waits collects for everybody."""
        while True:
            with self._lock:
                if number in self._done:
                    return self._done.pop(number)
                self._collect()

    def _collect(self) -> None:
        """Wait for some answers, and take them."""
        busy = [worker for worker in self._workers if worker.busy]  # somebody else may have collected meanwhile
        begun = time.monotonic()
        ready = wait([worker.pipe for worker in busy], self._turn) if busy else []
        may_go_on()
        # at most what was meant: had this process been stopped itself, its workers would be none the worse
        spent = min(time.monotonic() - begun, self._turn)
        for worker in busy:
            if worker.pipe in ready:
                self._take(worker)
            else:
                worker.waited += spent
                if worker.late:
                    self._replace(worker)

    def _take(self, worker: _Worker) -> None:
        try:
            number, reply, state = worker.receive()
        except (EOFError, OSError):
            self._replace(worker)
        else:
            self._keep(number, reply, state, lost=False)

    def _keep(self, number: int, reply: Reply, state: ClientState | None, *, lost: bool) -> None:
        if number in self._unwanted:
            self._unwanted.remove(number)
        else:
            self._done[number] = reply, state, lost

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._nursery.close()


def _serve(runner: Runner, channel: Channel) -> None:
    """A worker's life: until the channel closes, do jobs."""
    torch.set_num_threads(1)
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    shared: dict[str, Tensor] = {}
    with contextlib.suppress(OSError):  # nobody is left to answer to
        while (message := inbox.get()) is not None:
            head, arrays = decode(message, ours=True)
            if "shared" in head:
                shared = arrays
            else:
                channel.send(_answer(runner, head, arrays, shared))


def _listen(channel: Channel, inbox: queue.SimpleQueue[bytes | None]) -> None:
    """Reads on while a reply is being written: two ends that both wait to write would wait forever.

    When the other end is gone, work that does not end is left.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            inbox.put(channel.receive())
    inbox.put(None)
    time.sleep(LINGER)
    os._exit(1)


def _answer(runner: Runner, head: dict[str, Any], arrays: dict[str, Tensor], shared: dict[str, Tensor]) -> bytes:
    state = _taken(arrays, "state.")
    request = Request.of(head, arrays, shared)
    reply, new = runner(Job(head["client"], request, state if head["state"] else None))
    kept = {f"state.{name}": a for name, a in (new or {}).items()}
    return encode({"error": reply.error, "state": new is not None}, {**reply.arrays, **kept})


def _taken(arrays: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Takes the arrays of one kind out of those they travelled with."""
    return {name.removeprefix(prefix): arrays.pop(name) for name in list(arrays) if name.startswith(prefix)}
