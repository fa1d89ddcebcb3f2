"""The door to the clients: ask some of them something, fold what comes back.

A Fleet may stand around another Fleet: metering innermost, next to the engine, then losses and deadlines, and
outermost the `Door`, which algorithms see.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import NobodyAnswered
from polyfed.core.keys import generator
from polyfed.core.messages import Reply, Request, size
from polyfed.core.problem import Problem
from polyfed.core.validate import sound
from polyfed.core.work import works

Ids = Sequence[int]


@dataclass(frozen=True)
class Stack:
    """Replies of one or more clients: arrays with a leading client axis, and who failed and why."""

    clients: Ids
    arrays: Mapping[str, Tensor]
    failed: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, client: int, reply: Reply) -> Stack:
        if reply.error:
            return cls((), {}, {client: reply.error})
        return cls((client,), {name: a.unsqueeze(0) for name, a in reply.arrays.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    def to(self, device: str) -> Stack:
        return replace(self, arrays={name: a.to(device) for name, a in self.arrays.items()})

    def drop(self, bad: Mapping[int, str]) -> Stack:
        """Without some of the clients."""
        keep = [i for i, client in enumerate(self.clients) if client not in bad]
        arrays = {name: a[keep] for name, a in self.arrays.items()}
        return Stack([self.clients[i] for i in keep], arrays, {**self.failed, **bad})


@dataclass(frozen=True)
class Sum:
    """The sum of all replies, and who is in it."""

    arrays: Mapping[str, Tensor]
    clients: Ids
    failed: Mapping[int, str]

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    def to(self, device: str) -> Sum:
        return replace(self, arrays={name: a.to(device) for name, a in self.arrays.items()})


class Fleet(ABC):
    """Clients that can be asked. names are the objectives; examples and holds what each client said it has."""

    names: Sequence[str]
    examples: NDArray[np.int64]
    holds: NDArray[np.bool_]
    reduces = False  # whether `sum` adds up on the way (a cluster, secure aggregation) rather than folding `ask`

    def __len__(self) -> int:
        return len(self.examples)

    @abstractmethod
    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        """Replies in the order of `clients`, some at a time; some clients never answer."""

    def sum(self, clients: Ids, request: Request) -> Sum:
        """Only the sum of the replies: what a cluster adds up on the way and secure aggregation can reveal."""
        total: dict[str, Tensor] = {}
        answered: list[int] = []
        failed: dict[int, str] = {}
        for stack in self.ask(clients, request):
            failed.update(stack.failed)
            answered.extend(stack.clients)
            for name, a in stack.arrays.items():
                part = a.sum(0)
                total[name] = total[name].add_(part) if name in total else part
        return Sum(total, answered, failed)


class Engine(Fleet):
    """A Fleet that does the work. What its clients remember is the simulation's to save, or on their own disks."""

    durable = False  # whether clients keep their state themselves, so that the server must not run ahead of its disk
    overlaps = False  # whether requests from several threads are worked on side by side, or one after the other

    def tree(self) -> dict[str, Any]:
        """What clients remember, for the checkpoint."""
        return {}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""

    def close(self) -> None:
        """Let go of processes and connections."""


class Around(Fleet):
    """A Fleet around a Fleet: override `ask`."""

    def __init__(self, inner: Fleet) -> None:
        self.inner = inner
        self.names, self.examples, self.holds = inner.names, inner.examples, inner.holds

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        return self.inner.ask(clients, request)

    def report(self) -> dict[str, Any]:
        """What this layer and those inside it have to say about the round, for its line of metrics."""
        return self.inner.report() if isinstance(self.inner, Around) else {}


class Metered(Around):
    """Counts bytes as the schema of the messages says; a test proves that they equal the bytes serialised."""

    def __init__(self, inner: Fleet) -> None:
        super().__init__(inner)
        self.reduces = inner.reduces
        self.up = self.down = 0
        self._lock = threading.Lock()

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        row = request.row(0) if len(clients) else request
        each, left = size(row.head(), row.arrays()) if len(clients) else 0, len(clients)
        for stack in self.inner.ask(clients, request):
            left -= len(stack.clients) + len(stack.failed)
            self._count(down=each * (len(stack.clients) + len(stack.failed)))
            up = sum(Reply(error=why).nbytes for why in stack.failed.values())
            if len(stack.clients):
                up += Reply({name: a[0] for name, a in stack.arrays.items()}).nbytes * len(stack.clients)
            self._count(up=up)
            yield stack
        self._count(down=each * left)  # those that were asked and never heard of

    def sum(self, clients: Ids, request: Request) -> Sum:
        if not self.reduces:
            return super().sum(clients, request)
        if len(clients):
            row = request.row(0)
            self._count(down=size(row.head(), row.arrays()) * len(clients))
        total = self.inner.sum(clients, request)
        up = sum(Reply(error=why).nbytes for why in total.failed.values())
        self._count(up=up + Reply(total.arrays).nbytes * len(total.clients))  # a sum is as long as its terms
        return total

    def _count(self, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.up += up
            self.down += down


class Door(Around):
    """What an algorithm sees: draws cohorts, stamps requests with the time, and lets only sound replies through.

    A reply with a wrong name, shape or type, or with NaN or infinity, is dropped and its client named among the
    failures. Whose state-keeping replies got through is remembered, and told to the clients with the next request.
    """

    def __init__(self, inner: Fleet, problem: Problem, *, seed: int, cohort: int, rounds: int = 1) -> None:
        super().__init__(inner)
        self.reduces = inner.reduces
        self.problem, self.seed, self.size, self.rounds = problem, seed, cohort, rounds
        self._dims, self._dtype = problem.dims, problem.dtype
        self._able = None if self.examples.all() else np.flatnonzero(self.examples)
        self._lock = threading.Lock()
        self._summing: dict[int, bool] = {}  # by thread
        self.folded: dict[int, int] = {}
        self.begin(0)

    def begin(self, t: int) -> None:
        """Start round t: exchanges are counted, and failures and participants listed, anew."""
        self.round, self._exchange = t, 0
        self._begun = dict(self.folded)
        self.failures: list[tuple[int, str]] = []
        self.asked: dict[int, None] = {}

    def tree(self) -> dict[str, Any]:
        """Whose replies were used last, for the checkpoint."""
        if not self.folded:
            return {}
        return {"clients": torch.tensor(list(self.folded)), "ticks": torch.tensor(list(self.folded.values()))}

    def rewind(self) -> None:
        """Back to the beginning of the round, which could not be finished."""
        self.folded = dict(self._begun)

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""
        self.folded = dict(zip(tree["clients"].tolist(), tree["ticks"].tolist(), strict=True)) if tree else {}

    def cohort(self, t: int, purpose: str = "cohort", size: int | None = None) -> list[int]:
        """Clients drawn uniformly without replacement, in order of their numbers; only those that have examples."""
        able = len(self) if self._able is None else len(self._able)
        k = min(self.size if size is None else size, able)
        draw = np.arange(able) if k == able else generator(self.seed, purpose, t).choice(able, k, replace=False)
        chosen = np.sort(draw) if self._able is None else self._able[np.sort(draw)]
        return [int(c) for c in chosen]

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        request = self._stamp(clients, request)
        answered = 0
        failed: dict[int, str] = {}
        for stack in self.inner.ask(clients, request):
            stack = self._sound(stack, request)
            failed.update(stack.failed)
            answered += len(stack.clients)
            self._record(stack, request)
            if len(stack.clients):
                yield self._here(stack)
        if not answered:
            raise NobodyAnswered(_nobody(request, clients, failed))

    def _here(self, stack: Stack) -> Stack:
        """On the server's device; while a sum is being formed, stacks stay where they were made."""
        return stack if self._summing.get(threading.get_ident()) else stack.to("cpu")

    def sum(self, clients: Ids, request: Request) -> Sum:
        if not self.reduces:
            self._summing[threading.get_ident()] = True
            try:
                return super().sum(clients, request).to("cpu")
            finally:
                self._summing[threading.get_ident()] = False
        request = self._stamp(clients, request)
        total = self.inner.sum(clients, request)
        if total.clients:  # single replies were checked where they were added; their sum is checked here
            as_one = Stack(total.clients[:1], {name: a.unsqueeze(0) for name, a in total.arrays.items()})
            bad = self._sound(as_one, request).failed
            for why in bad.values():
                total = Sum({}, (), {**total.failed, **dict.fromkeys(total.clients, f"the sum: {why}")})
        self._record(total, request)
        if not total.clients:
            raise NobodyAnswered(_nobody(request, clients, total.failed))
        return total

    def _record(self, answer: Stack | Sum, request: Request) -> None:
        """Who failed, and whose state-keeping reply was used."""
        with self._lock:
            self.failures += answer.failed.items()
            if works[request.work].state is not None:
                self.folded.update(dict.fromkeys(answer.clients, request.tick))

    def _stamp(self, clients: Ids, request: Request) -> Request:
        with self._lock:
            exchange, self._exchange = self._exchange, self._exchange + 1
            self.asked.update(dict.fromkeys(clients))
        folded = torch.tensor([self.folded.get(c, -1) for c in clients], dtype=torch.int64)
        return replace(request, seed=self.seed, round=self.round, exchange=exchange, folded=folded)

    def _sound(self, stack: Stack, request: Request) -> Stack:
        return sound(stack, request, self._dims, self._dtype)


def _nobody(request: Request, clients: Ids, failed: Mapping[int, str]) -> str:
    first = next((f" (client {c}: {why})" for c, why in failed.items()), "")
    asked = f"none of the {len(clients)} clients asked for {request.work!r}"
    return f"Round {request.round}: {asked} gave a usable reply{first}."
