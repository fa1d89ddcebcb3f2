"""Arrays that lie here as a fleet: one node per task, dense or sparse, worked on in this process by some threads.

The compiled loops let go of the interpreter's lock, so threads are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.core.client import Memory, State
from polyfed.core.fleet import Door, Engine, Ids, Stack
from polyfed.core.keys import key
from polyfed.core.messages import Request
from polyfed.core.problem import Objective, Problem
from polyfed.core.work import works
from polyfed.work.linear.examples import Examples


@dataclass
class Node:
    """A `Client` for work on rows: it has no module, so it can give no gradients."""

    id: int
    n: int
    problem: Any
    scratch: dict[str, Any]
    holds: Tensor = field(default_factory=lambda: torch.ones(1))
    key: int = 0


class Given(Engine):
    """A fleet over one `Examples` per node."""

    def __init__(self, tasks: Sequence[Examples], threads: int = 1) -> None:
        self.names = ("y",)
        self.examples = np.array([len(task.y) for task in tasks], dtype=np.int64)
        self.holds = np.ones((len(tasks), 1), dtype=bool)
        self.memory = Memory()
        names = SimpleNamespace(names=self.names)
        self._nodes = [Node(i, len(t.y), names, {"rows": t}) for i, t in enumerate(tasks)]
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        sent = self.memory.recall(clients, request)
        rows = [replace(request.row(i), shared=shared) for i, shared in enumerate(sent)]
        states = [self.memory.settle(c, row) for c, row in zip(clients, rows, strict=True)]
        done = list(self._map(clients, rows, states))
        for client, row, (_, state) in zip(clients, rows, done, strict=True):
            self.memory.keep(client, row, state)
        if done:  # one stack for all: what is done per stack would cost more than the work
            yield Stack(clients, {name: torch.stack([arrays[name] for arrays, _ in done]) for name in done[0][0]})

    def _map(self, clients: Ids, rows: list[Request], states: list[State | None]) -> Iterator[Any]:
        apply = map if self._pool is None else self._pool.map
        return iter(apply(self._do, clients, rows, states))

    def _do(self, client: int, request: Request, state: State | None) -> tuple[dict[str, Tensor], State | None]:
        node = replace(self._nodes[client], key=key(request.seed, request.round, client))
        arrays, state = works[request.work](node, request, state)  # type: ignore[arg-type]
        return dict(arrays), state  # type: ignore[arg-type]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def door(tasks: Sequence[Examples], *, seed: int = 0, threads: int = 1) -> tuple[Given, Door]:
    """The fleet and the door to it; features only, a constant one where an intercept is wanted."""
    engine = Given(tasks, threads)
    problem = Problem(nn.Linear(tasks[0].X.shape[1], 1, bias=False), [Objective("y", "squared")], torch.float64)
    return engine, Door(engine, problem, seed=seed, cohort=len(tasks))
