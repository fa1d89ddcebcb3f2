"""Arrays that lie here as a fleet: one node per task, dense or sparse, worked on in this process by some threads.

The compiled loops let go of the interpreter's lock, so threads are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.client.memory import Job, Memory
from polyfed.client.runner import perform, unchecked
from polyfed.core import interrupt
from polyfed.core.client import ClientState
from polyfed.core.clock import Clock
from polyfed.core.door import Door, PartView
from polyfed.core.engine import Engine
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation, Rows
from polyfed.core.fleet import Ids, Stack
from polyfed.core.keys import client_key
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.problem import Batch, Objective, Problem
from polyfed.work.linear.examples import Examples


@dataclass
class TaskClient:
    """A `RowClient` over rows that are here already: it has no module, so it can give no gradients."""

    id: int
    n: int
    problem: Problem
    scratch: dict[str, Any]
    key: int = 0
    common_key: int = 0
    exchange: int = 0
    holds: Tensor = field(default_factory=lambda: torch.ones(1))
    fractions: Tensor = field(default_factory=lambda: torch.ones(1))

    def data(self, split: str = "train") -> Batch:
        """The rows are in the scratch, as the loops want them."""
        raise BadInput("An estimator's rows are prepared already; there is no batch of them.")


class ArrayEngine(Engine):
    """A fleet over one `Examples` per task.

    Args:
        tasks: each task's rows.
        problem: one task's linear model.
        threads: how many work at once.
    """

    def __init__(self, tasks: Sequence[Examples], problem: Problem, threads: int = 1) -> None:
        examples = np.array([len(task.y) for task in tasks], dtype=np.int64)
        blank = torch.zeros(int(examples.sum()), 1)
        rows = Rows(np.arange(len(blank)), np.cumsum(examples) - examples, examples)
        super().__init__({"": Part(problem, Federation(blank, {}, rows))}, Layers())
        interrupt.begin()
        self.memory = Memory()
        self._clients = [TaskClient(i, len(t.y), problem, {"rows": t}) for i, t in enumerate(tasks)]
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        jobs = list(self.memory.jobs(clients, request))
        try:
            done = list(map(self._do, jobs) if self._pool is None else self._pool.map(self._do, jobs))
        except KeyboardInterrupt:
            interrupt.give_up()  # the threads' work, too
            raise
        for job, (_, state) in zip(jobs, done, strict=True):
            self.memory.keep(job, state)
        if done:  # one stack for all: what is done per stack would cost more than the work
            names = done[0][0]
            yield Stack(clients, {n: torch.stack([torch.as_tensor(arrays[n]) for arrays, _ in done]) for n in names})

    def _do(self, job: Job) -> tuple[Mapping[str, Any], ClientState | None]:
        request = job.request
        client = replace(self._clients[job.client], key=client_key(request.seed, request.round, job.client))
        return perform(client, request, job.state, self.layers, unchecked)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def open_door(tasks: Sequence[Examples], *, seed: int = 0, threads: int = 1) -> tuple[ArrayEngine, Door]:
    """The engine and the door to it; features only, a constant one where an intercept is wanted."""
    problem = Problem(nn.Linear(tasks[0].X.shape[1], 1, bias=False), [Objective("y", "squared")], torch.float64)
    engine = ArrayEngine(tasks, problem, threads)
    view = PartView(engine, "", engine.population[""], Clock(seed))
    return engine, Door(view, problem, cohort=len(tasks))
