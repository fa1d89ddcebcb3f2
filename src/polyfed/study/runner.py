"""Runs the cells of a study, in this process or in several, and goes on where an earlier call was ended.

    with locked(study), Pool(study, name, jobs=2, told=told) as pool:      # workers are forked here, once
        for outcome in pool.run(cells):                                    # as they finish
            ...

or, where the next cell depends on the last ones, `pool.submit(cell)` and `pool.next()`. For one cell in this process,
`run_cell(study, name, cell)`.

- A finished cell is not run again: its outcome comes from its result.json. One that was killed goes on.
- A worker starts once and keeps the data of the cell before, so that the next cell of the same data and seed has them.
- A cell that fails gives an outcome with `why`, one sentence; the others go on. `bad` says that its input was refused.
- `told(cell, line)` is called in this process with each line of metrics as its round is done. What it returns, if it is
  a text, ends that run after the round for good, with this sentence as `summary['stopped']`; with asks=True a worker
  waits for the answer, so that the round in which a run is ended is no matter of luck.
- `prepare(cell, plan)` may change what is run (the start of a model, more callbacks); it is called where the cell runs.
- The first Ctrl-C lets every run finish its round; the second and SIGTERM end at once. Then `Interrupted` is raised,
  and the same call goes on from the checkpoints. What workers print is in output.log of the study's folder.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import torch

from polyfed.core.errors import BadInput, Interrupted, PolyfedError
from polyfed.core.settings import Settings
from polyfed.engines.local.nursery import Nursery, forked
from polyfed.study.cells import Cell
from polyfed.study.running import (
    AGAIN,
    DataOnce,
    Line,
    Outcome,
    Prepare,
    Teller,
    Told,
    broken,
    finished,
    run_cell,
)
from polyfed.study.worker import Worker

__all__ = [
    "AGAIN", "DataOnce", "Line", "Outcome", "Pool", "Prepare", "Teller", "Told", "check_jobs", "default_jobs",
    "finished", "run_cell",
]  # fmt: skip
TURN = 0.2  # seconds after which a signal is looked for
GRACE = 5.0  # seconds that workers have to write a checkpoint
HEARD = 0.5  # seconds after which a worker that works on has not had a signal


def default_jobs(settings: Iterable[Settings], cells: int) -> int:
    """As many as there are cores, and cells; 1 where an engine uses a GPU or starts processes itself."""
    every = list(settings)
    if "fork" not in multiprocessing.get_all_start_methods() or any(map(_has_processes, every)) or _gpu(every):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, cells))


def check_jobs(jobs: int, settings: Iterable[Settings]) -> None:
    """Refuse processes that would be in each other's way, or cannot be."""
    every = list(settings)
    if jobs < 1:
        raise BadInput(f"--jobs should be a whole number from 1 on. Found {jobs}.")
    if jobs > 1 and "fork" not in multiprocessing.get_all_start_methods():
        raise BadInput("--jobs above 1 needs a system that can fork (Linux, macOS); leave it out.")
    if jobs > 1 and any(map(_has_processes, every)):
        raise BadInput(
            f"--jobs above 1 is for engines of one process (auto, batched, local, wire). Found {jobs} with an engine "
            "that has processes of its own; leave --jobs out."
        )
    begun: Callable[[], bool] = torch.cuda.is_initialized
    if jobs > 1 and _gpu(every) and begun():
        raise BadInput(
            f"--jobs above 1 on a GPU needs a process that has not used it, as its children could not. Found {jobs} "
            "where it has been used; leave --jobs out, or begin with this call."
        )


def _engine(settings: Settings) -> Settings:
    table = settings.get("engine") or {}
    return {"name": table} if isinstance(table, str) else table


def _has_processes(settings: Settings) -> bool:
    """Whether an engine is more than one process."""
    table = _engine(settings)
    return table.get("name", "local") not in ("auto", "batched", "local", "wire") or table.get("workers", 1) != 1


def _gpu(every: Iterable[Settings]) -> bool:
    """Whether any engine uses a GPU."""
    tables = list(map(_engine, every))
    usual = {"auto": "auto", "batched": "auto"}  # the others' is the CPU
    devices = [table.get("device", usual.get(table.get("name", "local"), "cpu")) for table in tables]
    return "cuda" in devices or ("auto" in devices and torch.cuda.is_available())


@dataclass
class _Hand:
    """A worker, as this process sees it."""

    pipe: Connection
    pid: int
    cell: Cell | None = None
    data: str = ""  # what it has in memory


class _Signals:
    """Ctrl-C and SIGTERM while workers work: 1 for 'after this round', 2 for 'at once'."""

    def __init__(self) -> None:
        self.level = 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _handle(self, number: int, frame: object) -> None:
        self.level = 2 if number == signal.SIGTERM or self.level else 1
        if self.level == 1:
            print("\nStopping after these rounds; once more stops at once.", file=sys.stderr)


class Pool:
    """Runs cells, in `jobs` processes or, with one job, in this one.

    Args:
        study: the folder; hold its lock (`polyfed.study.cells.locked`).
        name: the experiment's.
        jobs: how many processes, each with one thread; see `default_jobs` and `check_jobs`.
        folder: where the experiment's own functions lie.
        told: is told of every round.
        prepare: changes what is run.
        asks: whether a worker waits for what `told` answers.
        until: the moment, as `time.monotonic` has it, when all runs are ended after their rounds, as by Ctrl-C.
    """

    def __init__(
        self,
        study: Path,
        name: str,
        *,
        jobs: int = 1,
        folder: str = "",
        told: Told = lambda cell, line: None,
        prepare: Prepare | None = None,
        asks: bool = False,
        until: float = math.inf,
    ) -> None:
        self.study, self.name, self.jobs, self.folder = study, name, jobs, folder
        self.told, self.prepare, self.asks, self.until = told, prepare, asks, until
        self._waiting: deque[Cell] = deque()
        self._ready: deque[Outcome] = deque()
        self._load = DataOnce()
        self._signals = _Signals()
        self._nursery: Nursery | None = None
        self._hands: list[_Hand] = []
        self._open = ExitStack()

    def __enter__(self) -> Pool:
        self.jobs = forked(self.jobs, "jobs")
        if self.jobs > 1:
            self._nursery = Nursery(
                Worker(self.study, self.name, self.folder, self.prepare, self.asks)
            )  # before anything here has begun a thread
            self._open.callback(self._nursery.close)
            self._hands = [_Hand(*self._nursery.start(place)) for place in range(self.jobs)]
            self._open.enter_context(self._signals.caught())
        return self

    def __exit__(self, *error: object) -> None:
        for hand in self._hands:
            hand.pipe.close()
        self._open.close()

    def submit(self, cell: Cell) -> None:
        """A cell to be run, if it is not finished."""
        done = finished(self.study, cell)
        if done is not None:
            self._ready.append(done)
        else:
            self._waiting.append(cell)

    def run(self, cells: Iterable[Cell]) -> Iterator[Outcome]:
        """All cells; their outcomes as they come, those of finished ones first."""
        for cell in cells:
            self.submit(cell)
        while (outcome := self.next()) is not None:
            yield outcome

    @property
    def working(self) -> int:
        """How many cells are submitted and not yet handed out as outcomes."""
        return len(self._waiting) + len(self._ready) + len(self._busy())

    def next(self) -> Outcome | None:
        """The next outcome, as soon as there is one; None where no cell is left."""
        if self._ready:
            return self._ready.popleft()
        if self.jobs == 1:
            return self._here(self._waiting.popleft()) if self._waiting else None
        while not self._ready:
            if self._signals.level or (self._late() and (self._waiting or self._busy())):
                self._stop()
            self._feed()
            if not (busy := self._busy()):
                return None
            self._hear(busy)
        return self._ready.popleft()

    def _busy(self) -> list[_Hand]:
        return [hand for hand in self._hands if hand.cell is not None]

    def _late(self) -> bool:
        return time.monotonic() >= self.until

    def _told_in_time(self, cell: Cell, line: Line) -> str | None:
        said = self.told(cell, line)
        self._check_time()
        return said

    def _check_time(self) -> None:
        if self._late():
            raise Interrupted(f"Stopped; {AGAIN}.")

    def _here(self, cell: Cell) -> Outcome:
        self._check_time()
        self._load.begin()
        try:
            callbacks = [Teller(cell, self._told_in_time)]
            return run_cell(
                self.study, self.name, cell, folder=self.folder, load=self._load, callbacks=callbacks,
                prepare=self.prepare,
            )  # fmt: skip
        except (Interrupted, KeyboardInterrupt) as error:
            if isinstance(error.__cause__, PolyfedError):
                raise error.__cause__ from None
            raise Interrupted(f"Stopped; {AGAIN}.") from None
        except Exception as error:
            return broken(self.study, cell, error)

    def _feed(self) -> None:
        """Cells to the workers that have nothing to do, those first whose data a worker has, or no other has."""
        for hand in self._hands:
            if hand.cell is None and self._waiting:
                others = {other.data for other in self._hands if other is not hand}
                cell = min(self._waiting, key=lambda c: 0 if c.data == hand.data else 1 if c.data not in others else 2)
                self._waiting.remove(cell)
                hand.cell, hand.data = cell, cell.data
                with suppress(OSError):  # one that is gone is seen when it is listened to
                    hand.pipe.send(("cell", cell))

    def _hear(self, busy: Sequence[_Hand]) -> None:
        by_pipe: dict[Any, _Hand] = {hand.pipe: hand for hand in busy}
        for pipe in wait(list(by_pipe), TURN):
            hand = by_pipe[pipe]
            try:
                what, found = hand.pipe.recv()
            except (EOFError, OSError):
                self._replace(hand)
                continue
            if what == "line":
                self._answer(hand, found)
                continue
            if what == "done":
                self._ready.append(found)
            else:
                self._signals.level = self._signals.level or 1  # somebody has stopped the worker itself
            hand.cell = None

    def _answer(self, hand: _Hand, line: Line) -> None:
        if hand.cell is None:
            return
        why = self.told(hand.cell, line)
        with suppress(OSError):
            if why is not None:
                hand.pipe.send(("end", why))
            elif self.asks:
                hand.pipe.send(("go", ""))

    def _replace(self, hand: _Hand) -> None:
        """A worker that died takes its cell with it; another takes its place."""
        if self._nursery is None or hand.cell is None:
            return
        cell, hand.cell, hand.data = hand.cell, None, ""
        code = self._nursery.end(hand.pid)
        why = f"The process that ran it ended with code {code}; out of memory? {AGAIN.capitalize()}."
        self._ready.append(Outcome(cell, self.study / cell.name, why=why))
        hand.pipe.close()
        hand.pipe, hand.pid = self._nursery.start(self._hands.index(hand))

    def _stop(self) -> NoReturn:
        """End all runs, after their rounds or at once."""
        self._tell("interrupt")
        while self._busy() and self._signals.level < 2:
            self._hear(self._busy())
        self._hear_for(HEARD)  # a signal to the whole group has reached the workers, too
        for hand in self._busy():
            with suppress(OSError):
                os.kill(hand.pid, signal.SIGTERM)
        self._hear_for(GRACE)
        for hand in self._busy():
            if self._nursery is not None:
                self._nursery.end(hand.pid)
        raise Interrupted(f"Stopped; {AGAIN}.")

    def _tell(self, word: str) -> None:
        for hand in self._busy():
            with suppress(OSError):
                hand.pipe.send((word, ""))

    def _hear_for(self, seconds: float) -> None:
        """Until all runs have ended, or this time is over."""
        until = time.monotonic() + seconds
        while self._busy() and time.monotonic() < until:
            self._hear(self._busy())
