"""Engine `local`: a simulation on this machine, in this process or over several with one torch thread each."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from polyfed.client.device import HOST, Device, resolve
from polyfed.client.runner import Bench, Job
from polyfed.core.client import Memory, State, Wrappers
from polyfed.core.federation import Federation
from polyfed.core.fleet import Engine, Ids, Stack
from polyfed.core.messages import Reply, Request
from polyfed.core.problem import Problem
from polyfed.engines import engines
from polyfed.engines.local.workers import Pool


@engines("local")
class Local(Engine):
    """A loop over the cohort in this process, on a CPU or GPU, or `workers` processes on the CPU over shared data."""

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        wrappers: Wrappers,
        *,
        workers: Annotated[int, Field(ge=1)] = 1,
        device: Device = "cpu",
    ) -> None:
        where = HOST if workers > 1 else resolve(device)  # forked processes cannot share a GPU
        self.names, self.examples = problem.names, federation.examples
        self.holds = federation.matrix(problem.names)
        self.memory = Memory()
        self._bench = Bench(problem, federation, wrappers, device=where)
        self._lock = threading.Lock()  # the bench has one module: one client at a time
        # forked now, before a progress display or anything else has started a thread
        self._pool = Pool(self._bench, workers) if workers > 1 else None

    @classmethod
    def for_models(
        cls,
        parts: Mapping[str, tuple[Problem, Federation]],
        wrappers: Wrappers,
        *,
        workers: int = 1,
        device: Device = "cpu",
    ) -> dict[str, Engine]:
        """An engine for each of several models, all over the same processes."""
        where: Device = "cpu" if workers > 1 else device
        made = {m: cls(problem, federation, wrappers, device=where) for m, (problem, federation) in parts.items()}
        if workers > 1:
            benches = {name: engine._bench for name, engine in made.items()}
            pool = Pool(lambda client, request, state: benches[request.model](client, request, state), workers)
            for engine in made.values():
                engine._pool, engine.overlaps = pool, True
        return dict(made)

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        jobs = self._jobs(clients, request)
        for job, reply, state in self._done(jobs):
            self.memory.keep(job.client, job.request, state)
            yield Stack.of(job.client, reply)

    def _jobs(self, clients: Ids, request: Request) -> Iterator[Job]:
        for i, shared in enumerate(self.memory.recall(clients, request)):
            row = replace(request.row(i), shared=shared)
            yield Job(clients[i], row, self.memory.settle(clients[i], row))

    def _done(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Reply, State | None]]:
        if self._pool is not None:
            yield from self._pool.map(jobs)
            return
        for job in jobs:
            with self._lock:
                reply, state = self._bench(*job)
            yield job, reply, state

    def tree(self) -> dict[str, Any]:
        return self.memory.tree()

    def load(self, tree: Mapping[str, Any]) -> None:
        self.memory.load(tree)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
