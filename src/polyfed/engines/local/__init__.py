"""Engine `local`: a simulation on this machine, in this process or over several with one torch thread each."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from polyfed.client.device import HOST, Device, resolve
from polyfed.client.memory import Job, Memory
from polyfed.client.runner import ClientRunner, run_jobs
from polyfed.core.client import ClientState
from polyfed.core.engine import Engine, engines
from polyfed.core.fleet import Ids, Stack
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request
from polyfed.core.part import Parts
from polyfed.core.patience import Patience
from polyfed.engines.local.nursery import forked
from polyfed.engines.local.workers import Pool


@engines("local")
class Local(Engine):
    """A loop over the cohort in this process, on a CPU or GPU, or `workers` processes on the CPU over shared data.

    Args:
        workers: processes, with one torch thread each; 1 for this one alone.
        device: 'cpu', 'cuda', or 'auto' for the GPU where there is one; more than one worker means 'cpu'.
        timeout: seconds that a worker may take for one client, then the client has failed and the worker is replaced;
            0 for any time. One process alone waits for itself.
    """

    def __init__(
        self,
        parts: Parts,
        layers: Layers,
        *,
        workers: Annotated[int, Field(ge=1)] = 1,
        device: Device = "cpu",
        timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0,
    ) -> None:
        super().__init__(parts, layers)
        self.device = HOST if workers > 1 else resolve(device)  # forked processes cannot share a GPU
        self.workers = workers = forked(workers, "workers")
        self.memory = {name: Memory() for name in parts}
        self.patience = {name: Patience() for name in parts}
        self._runners = {n: ClientRunner(p.problem, p.federation, layers, device=self.device) for n, p in parts.items()}
        self._one_at_a_time = threading.Lock()  # a runner has one module
        # forked now, before a progress display or anything else has started a thread
        self._pool = Pool(self._run, workers, timeout) if workers > 1 else None
        self.overlaps = self._pool is not None

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        memory = self.memory[request.part]
        if self._pool is None:
            for job, reply in run_jobs(self._run_here, memory, clients, request):
                yield Stack.of(job.client, reply)
            return
        patience = self.patience[request.part]
        asked = set(patience.among(clients, request.round))
        found = self._pool.map(job for job in memory.jobs(clients, request) if job.client in asked)
        for client in clients:
            if client not in asked:
                yield Stack.of(client, Reply(error=patience.why(client)))
                continue
            job, reply, state, lost = next(found)
            if lost:
                patience.missed(client, request.round)
            else:
                patience.answered(client)
                memory.keep(job, state)
            yield Stack.of(client, reply)

    def attempt(self, jobs: Iterable[Job]) -> None:
        """Do some work of which nothing is kept, to see how long it takes."""
        for _ in map(self._run_here, jobs) if self._pool is None else self._pool.map(jobs):
            pass

    def _run(self, job: Job) -> tuple[Reply, ClientState | None]:
        return self._runners[job.request.part](job)

    def _run_here(self, job: Job) -> tuple[Reply, ClientState | None]:
        with self._one_at_a_time:
            return self._run(job)

    def tree(self) -> dict[str, Any]:
        return {name: {**memory.tree(), **self.patience[name].tree()} for name, memory in self.memory.items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for name, memory in self.memory.items():
            own = tree.get(name, {})
            memory.load({client: slot for client, slot in own.items() if client != "missed"})
            self.patience[name].load(own)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
