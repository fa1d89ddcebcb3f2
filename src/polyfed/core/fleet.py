"""The door to the clients: ask some of them something, fold what comes back.

A Fleet may stand around another Fleet. From the engine outwards: `Metered` counts bytes; `PartView` is the fleet as one
model's clients, and stamps each exchange with the time; then the server's halves of the layers; and outermost the
`Door`, which is what an algorithm calls `fleet`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import NobodyAnswered
from polyfed.core.keys import generator
from polyfed.core.messages import Reply, Request, size
from polyfed.core.problem import Problem
from polyfed.core.schema import Fields, weigh
from polyfed.core.work import works

if TYPE_CHECKING:
    from polyfed.core.federation import Federation

Ids = Sequence[int]


@dataclass(frozen=True)
class Stack:
    """Replies of one or more clients: arrays with a leading client axis, who failed and why, and when it was."""

    clients: Ids
    arrays: Mapping[str, Tensor]
    failed: Mapping[int, str] = field(default_factory=dict)
    tick: int = -1

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
        return replace(self, clients=[self.clients[i] for i in keep], arrays=arrays, failed={**self.failed, **bad})

    def weighed(self, request: Request) -> Stack:
        """Every reply times its weights, so that adding up gives the numerators of weighted means."""
        fields = works[request.work].fields(request.options)
        return replace(self, arrays=weigh(self.arrays, fields))


@dataclass(frozen=True)
class Sum:
    """The sum of all replies, each array times the weight it is averaged by, and who is in it."""

    arrays: Mapping[str, Tensor]
    clients: Ids
    failed: Mapping[int, str]
    tick: int = -1

    @classmethod
    def of(cls, stacks: Iterable[Stack]) -> Sum:
        """Stacks added up as they come, in their order."""
        total: dict[str, Tensor] = {}
        answered: list[int] = []
        failed: dict[int, str] = {}
        tick = -1
        for stack in stacks:
            failed.update(stack.failed)
            answered.extend(stack.clients)
            tick = max(tick, stack.tick)
            for name, a in stack.arrays.items() if len(stack.clients) else ():  # what was refused may have any shape
                part = a.sum(0)
                if name in total:  # of one round, some replies may have been made on a GPU and some on the host
                    total[name] = total[name].add_(part.to(total[name].device))
                else:
                    total[name] = part
        return cls(total, answered, failed, tick)

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    def to(self, device: str) -> Sum:
        return replace(self, arrays={name: a.to(device) for name, a in self.arrays.items()})


@dataclass(frozen=True)
class Population:
    """What the server knows of one model and its clients: the objectives' names, how many examples each client has,
    which objectives it holds (clients x objectives), and the type that the model is trained in."""

    names: Sequence[str]
    examples: NDArray[np.int64]
    holds: NDArray[np.bool_]
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, problem: Problem, federation: Federation) -> Population:
        return cls(problem.names, federation.examples, federation.matrix(problem.names), problem.dtype)


class Fleet(ABC):
    """Clients that can be asked."""

    @abstractmethod
    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        """Replies in the order of `clients`, some at a time; some clients never answer."""

    def sum(self, clients: Ids, request: Request) -> Sum:
        """Only the sum of the replies: what a cluster adds up on the way and secure aggregation can reveal."""
        return Sum.of(self.ask(clients, request))


class Metered(Fleet):
    """Counts bytes as the schema of the messages says; a test proves that they equal the bytes serialised."""

    def __init__(self, inner: Fleet) -> None:
        self.inner = inner
        self.up = self.down = 0
        self._lock = threading.Lock()

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        each, left = self._length(clients, request), len(clients)
        for stack in self.inner.ask(clients, request):
            left -= len(stack.clients) + len(stack.failed)
            self._count(down=each * (len(stack.clients) + len(stack.failed)), up=_reply_bytes(stack.failed))
            if len(stack.clients):
                one = Reply({name: a[0] for name, a in stack.arrays.items()})
                self._count(up=one.nbytes * len(stack.clients))
            yield stack
        self._count(down=each * left)  # those that were asked and never heard of

    def sum(self, clients: Ids, request: Request) -> Sum:
        self._count(down=self._length(clients, request) * len(clients))
        total = self.inner.sum(clients, request)
        up = Reply(total.arrays).nbytes * len(total.clients)  # a sum is as long as its terms
        self._count(up=up + _reply_bytes(total.failed))
        return total

    @staticmethod
    def _length(clients: Ids, request: Request) -> int:
        if not len(clients):
            return 0
        row = request.row(0)
        return size(row.head(), row.arrays())

    def _count(self, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.up += up
            self.down += down


def _reply_bytes(failed: Mapping[int, str]) -> int:
    return sum(Reply(error=why).nbytes for why in failed.values())


class Clock:
    """One model's time: rounds, exchanges, and the last exchange of each client whose reply was used.

    Clients that keep state are told the last tick of theirs that was used with the next request, and commit or discard
    what they were keeping.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.round, self.exchange = seed, 0, 0
        self.used: dict[int, int] = {}  # client -> tick
        self._begun: dict[int, int] = {}
        self._lock = threading.Lock()

    def begin(self, t: int) -> None:
        self.round, self.exchange = t, 0
        self._begun = dict(self.used)

    def stamp(self, clients: Ids, request: Request) -> Request:
        """The request as it goes out now: one more exchange."""
        with self._lock:
            exchange, self.exchange = self.exchange, self.exchange + 1
        folded = torch.tensor([self.used.get(c, -1) for c in clients], dtype=torch.int64)
        return replace(request, seed=self.seed, round=self.round, exchange=exchange, folded=folded)

    def use(self, clients: Ids, tick: int) -> None:
        """The replies of these clients to an exchange have been used."""
        with self._lock:
            self.used.update(dict.fromkeys(clients, tick))

    def rewind(self) -> None:
        """Back to the beginning of the round, which could not be finished."""
        self.used = dict(self._begun)

    def tree(self) -> dict[str, Any]:
        """Whose replies were used last, for the checkpoint."""
        if not self.used:
            return {}
        return {"clients": torch.tensor(list(self.used)), "ticks": torch.tensor(list(self.used.values()))}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""
        self.used = dict(zip(tree["clients"].tolist(), tree["ticks"].tolist(), strict=True)) if tree else {}


class PartFleet(Fleet):
    """A fleet of one model's clients: who they are, and their time.

    names, examples and holds are the population's.
    """

    clock: Clock
    population: Population

    @property
    def names(self) -> Sequence[str]:
        return self.population.names

    @property
    def examples(self) -> NDArray[np.int64]:
        return self.population.examples

    @property
    def holds(self) -> NDArray[np.bool_]:
        return self.population.holds

    def __len__(self) -> int:
        return len(self.examples)


class PartView(PartFleet):
    """The fleet as one model sees it: its name and the time are put on every request where an exchange is made."""

    def __init__(self, inner: Fleet, part: str, population: Population, clock: Clock) -> None:
        self.inner, self.part, self.population, self.clock = inner, part, population, clock

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        request = self.clock.stamp(clients, replace(request, part=self.part))
        for stack in self.inner.ask(clients, request) if len(clients) else ():
            yield replace(stack, tick=request.tick)

    def sum(self, clients: Ids, request: Request) -> Sum:
        request = self.clock.stamp(clients, replace(request, part=self.part))
        if not len(clients):
            return Sum({}, (), {}, request.tick)
        return replace(self.inner.sum(clients, request), tick=request.tick)


class Around(PartFleet):
    """A Fleet around a Fleet, the server's half of a layer. Override `ask`, and `sum` where there is a shorter way.

    A layer that overrides `ask` alone changes sums, too: they are then added up from what its `ask` gives. One that
    overrides `sum` alone leaves single replies as they are.
    """

    def __init__(self, inner: PartFleet) -> None:
        self.inner, self.clock, self.population = inner, inner.clock, inner.population

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        return self.inner.ask(clients, request)

    def sum(self, clients: Ids, request: Request) -> Sum:
        return self.inner.sum(clients, request) if type(self).ask is Around.ask else super().sum(clients, request)

    def single_replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        """Replies one by one and unweighted, whatever the request asked for."""
        return self.inner.ask(clients, replace(request, weighed=False))

    def exchange(self, clients: Ids, request: Request) -> Iterator[Stack]:
        """An exchange of the layer's own; replies count as used when they have come."""
        for stack in self.inner.ask(clients, request):
            if works[request.work].state is not None:
                self.clock.use(stack.clients, stack.tick)
            yield stack

    def fields(self, request: Request) -> Fields:
        """What the arrays of a reply mean."""
        return works[request.work].fields(request.options)

    def report(self) -> dict[str, Any]:
        """What this layer has to say about the round, for its line of metrics."""
        return {}

    def tree(self) -> dict[str, Any]:
        """What this layer remembers at the server, a tree of tensors for the checkpoint."""
        return {}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""


class PastMeasuring(Around):
    """A layer's server half, passed by when work only measures."""

    def __init__(self, half: PartFleet, beyond: PartFleet) -> None:
        super().__init__(half)
        self._beyond = beyond

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        return self._way(request).ask(clients, request)

    def sum(self, clients: Ids, request: Request) -> Sum:
        return self._way(request).sum(clients, request)

    def _way(self, request: Request) -> PartFleet:
        return self._beyond if works[request.work].measures else self.inner


def layer_fleets(fleet: Fleet) -> list[Around]:
    """The server's halves of the layers, from the outermost on."""
    found = []
    while isinstance(fleet, Around):
        if not isinstance(fleet, Door | PastMeasuring):
            found.append(fleet)
        fleet = fleet.inner
    return found


class Door(Around):
    """What an algorithm calls `fleet`: draws cohorts, asks and sums, and notes who took part, failed or was used.

    A reply counts as used when it has passed every layer; whose state-keeping replies were used is told to the clients
    with the next request.

    Args:
        inner: the outermost layer, or the part's view of the engine.
        problem: what is learned.
        cohort: how many clients a round has.
        rounds: how many rounds there will be.
        frame: how many models are trained together: the rounds in which each client meets each of them once.
        draw: from a round and a purpose to its clients, where a schedule decides.
        remembers: whether a layer keeps state at the clients, so that every reply has to be acknowledged.
    """

    def __init__(
        self,
        inner: PartFleet,
        problem: Problem,
        *,
        cohort: int,
        rounds: int = 1,
        frame: int = 1,
        draw: Callable[[int, str], list[int]] | None = None,
        remembers: bool = False,
    ) -> None:
        super().__init__(inner)
        self.problem, self.size, self.rounds, self.frame = problem, cohort, rounds, frame
        self._draw, self._remembers = draw, remembers
        self._lock = threading.Lock()
        self.begin(0)

    @property
    def seed(self) -> int:
        return self.clock.seed

    @property
    def round(self) -> int:
        return self.clock.round

    def begin(self, t: int) -> None:
        """Start round t: exchanges are counted, and failures and participants listed, anew."""
        self.clock.begin(t)
        self.failures: list[tuple[int, str]] = []
        self.asked: dict[int, None] = {}

    def cohort(self, t: int, purpose: str = "cohort", size: int | None = None) -> list[int]:
        """Clients for a purpose in round t, in order of their numbers; only those that have examples.

        By default as many as a round has, drawn uniformly without replacement, or as the schedule says; with a size,
        that many of all clients.
        """
        if self._draw is not None and size is None:
            return [c for c in self._draw(t, purpose) if self.examples[c]]
        return draw_cohort(self.examples, self.size if size is None else size, self.seed, purpose, t)

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        self._begin_exchange(clients, request)
        answered = 0
        failed: dict[int, str] = {}
        for stack in self.inner.ask(clients, request):
            failed.update(stack.failed)
            answered += len(stack.clients)
            self._record(stack, request)
            if len(stack.clients):
                yield stack.to("cpu")
        if not answered:
            raise NobodyAnswered(self._nobody(request, clients, failed))

    def sum(self, clients: Ids, request: Request) -> Sum:
        self._begin_exchange(clients, request)
        weighs = any(f.by for f in self.fields(request).values())
        total = self.inner.sum(clients, replace(request, weighed=weighs))
        self._record(total, request)
        if not total.clients:
            raise NobodyAnswered(self._nobody(request, clients, total.failed))
        return total.to("cpu")

    def _begin_exchange(self, clients: Ids, request: Request) -> None:
        works[request.work].check(request.options)
        with self._lock:
            self.asked.update(dict.fromkeys(clients))

    def _record(self, answer: Stack | Sum, request: Request) -> None:
        """Who failed, and whose state-keeping reply was used."""
        with self._lock:
            self.failures += answer.failed.items()
        work = works[request.work]
        if work.state is not None or (self._remembers and not work.measures):
            self.clock.use(answer.clients, answer.tick)

    def _nobody(self, request: Request, clients: Ids, failed: Mapping[int, str]) -> str:
        first = next((f" (client {c}: {why})" for c, why in failed.items()), "")
        asked = f"none of the {len(clients)} clients asked for {request.work!r}"
        return f"Round {self.round}: {asked} gave a usable reply{first}."

    def report(self) -> dict[str, Any]:
        """What the layers say about the round."""
        return {name: value for fleet in reversed(layer_fleets(self)) for name, value in fleet.report().items()}


def draw_cohort(examples: NDArray[np.int64], size: int, seed: int, purpose: str, t: int) -> list[int]:
    """Clients drawn uniformly without replacement among those that have examples, in order of their numbers."""
    able = None if examples.all() else np.flatnonzero(examples)
    there = len(examples) if able is None else len(able)
    k = min(size, there)
    drawn = np.arange(there) if k == there else np.sort(generator(seed, purpose, t).choice(there, k, replace=False))
    return [int(c) for c in (drawn if able is None else able[drawn])]
