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

from polyfed.core.errors import BadInput, NobodyAnswered
from polyfed.core.keys import generator
from polyfed.core.layer import Layers
from polyfed.core.messages import Reply, Request, size
from polyfed.core.problem import Problem
from polyfed.core.schema import Fields, weigh
from polyfed.core.work import works

if TYPE_CHECKING:
    from polyfed.core.federation import Federation

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

    @classmethod
    def of(cls, stacks: Iterable[Stack]) -> Sum:
        """Stacks added up as they come, in their order; whole numbers wrap, as masked sums want it."""
        total: dict[str, Tensor] = {}
        answered: list[int] = []
        failed: dict[int, str] = {}
        for stack in stacks:
            failed.update(stack.failed)
            answered.extend(stack.clients)
            for name, a in stack.arrays.items() if len(stack.clients) else ():  # what was refused may have any shape
                part = a.sum(0, dtype=a.dtype)
                if name in total:  # of one round, some replies may have been made on a GPU and some on the host
                    total[name] = total[name].add_(part.to(total[name].device))
                else:
                    total[name] = part
        return cls(total, answered, failed)

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

    Args:
        seed: of all draws.
        layers: the run's: some keep state at the clients, whatever the work.
    """

    def __init__(self, seed: int, layers: Layers | None = None) -> None:
        self.seed, self.round, self.exchange = seed, 0, 0
        self.layers = layers or Layers()
        self.used: dict[int, int] = {}  # client -> tick
        self.failures: list[tuple[int, str]] = []  # of this round
        self._answered: dict[int, int] = {}  # client -> the last tick that it answered with a state
        self._begun: dict[int, int] = {}
        self._lock = threading.Lock()

    def begin(self, t: int) -> None:
        self.round, self.exchange, self.failures = t, 0, []
        self._begun = dict(self.used)

    def stamp(self, clients: Ids, request: Request) -> Request:
        """The request as it goes out now: one more exchange."""
        with self._lock:
            exchange, self.exchange = self.exchange, self.exchange + 1
        folded = torch.tensor([self.used.get(c, -1) for c in clients], dtype=torch.int64)
        return replace(request, seed=self.seed, round=self.round, exchange=exchange, folded=folded)

    def answered(self, clients: Ids, request: Request) -> None:
        """These clients have answered an exchange; where they kept state with it, it may yet be used."""
        if self._keeps(request):
            with self._lock:
                self._answered.update(dict.fromkeys(clients, request.tick))

    def use(self, answer: Stack | Sum, request: Request) -> None:
        """An answer has been used: the state that its clients kept with it counts, and who failed is noted."""
        with self._lock:
            self.failures += answer.failed.items()
            if self._keeps(request):
                self.used.update({c: self._answered[c] for c in answer.clients if c in self._answered})

    def _keeps(self, request: Request) -> bool:
        work = works[request.work]
        return work.state is not None or self.layers.remember(work)

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
            self.clock.answered(stack.clients, request)
            yield stack

    def sum(self, clients: Ids, request: Request) -> Sum:
        request = self.clock.stamp(clients, replace(request, part=self.part))
        if not len(clients):
            return Sum({}, (), {})
        total = self.inner.sum(clients, request)
        self.clock.answered(total.clients, request)
        return total


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
        """An exchange of the layer's own; replies count as used when they have come.

        All client halves act on its work, as on any other; of the server's halves, those further in.
        """
        works[request.work].check(request.options)
        for stack in self.inner.ask(clients, request):
            self.clock.use(stack, request)
            yield stack

    def combined(self, stacks: Sequence[Stack], request: Request, how: Callable[[Tensor], Tensor]) -> Sum:
        """A sum in which the updates are not the mean but `how` combines them (clients first), a median say.

        It is as if every client had sent that: the method, which divides by the weights, gets it back. An objective's
        updates are combined over the clients that hold it.
        """
        total = Sum.of(stack.weighed(request) for stack in stacks)
        updates = {n: f for n, f in self.fields(request).items() if f.role == "update"} if total.clients else {}
        every = {n: torch.cat([s[n] for s in stacks if len(s.clients)]) for n in {*updates, *_weights(updates)}}
        made = {n: _combined(every[n], every.get(f.by), how) for n, f in updates.items()}
        return replace(total, arrays={**total.arrays, **made})

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
    ) -> None:
        super().__init__(inner)
        self.problem, self.size, self.rounds, self.frame = problem, cohort, rounds, frame
        self._draw = draw
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
        self.asked: dict[int, None] = {}
        self._begun = [(fleet, fleet.tree()) for fleet in layer_fleets(self)]

    def rewind(self) -> None:
        """Back to the beginning of the round, which could not be finished."""
        self.clock.rewind()
        for fleet, tree in self._begun:
            if tree:
                fleet.load(tree)

    @property
    def failures(self) -> list[tuple[int, str]]:
        """Who failed in this round, and why."""
        return self.clock.failures

    def cohort(self, t: int, purpose: str = "cohort", size: int | None = None) -> list[int]:
        """Clients for a purpose in round t, in order of their numbers; only those that have examples.

        By default as many as a round has, drawn uniformly without replacement, or as the schedule says; with a size,
        that many of all clients.
        """
        if self._draw is not None and size is None:
            return [c for c in self._draw(t, purpose) if self.examples[c]]
        return draw_cohort(self.examples, self.size if size is None else size, self.seed, purpose, t)

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        if self.clock.layers.hide(works[request.work]):
            raise BadInput(f"A layer lets only sums of {request.work!r} through; Algorithm.needs should say 'replies'.")
        clients = self._asked(clients, request)
        answered = 0
        failed: dict[int, str] = {}
        for stack in self.inner.ask(clients, request):
            failed.update(stack.failed)
            answered += len(stack.clients)
            self.clock.use(stack, request)
            if len(stack.clients):
                yield stack.to("cpu")
        if not answered:
            raise NobodyAnswered(self._nobody(request, clients, failed))

    def sum(self, clients: Ids, request: Request) -> Sum:
        clients = self._asked(clients, request)
        weighs = any(f.by for f in self.fields(request).values())
        total = self.inner.sum(clients, replace(request, weighed=weighs))
        self.clock.use(total, request)
        if not total.clients:
            raise NobodyAnswered(self._nobody(request, clients, total.failed))
        return total.to("cpu")

    def _asked(self, clients: Ids, request: Request) -> list[int]:
        """The clients as plain numbers; they take part in the round. Options that the work does not have end here."""
        works[request.work].check(request.options)
        numbers = [int(client) for client in clients]
        self.asked.update(dict.fromkeys(numbers))
        return numbers

    def _nobody(self, request: Request, clients: Ids, failed: Mapping[int, str]) -> str:
        first = next((f" (client {c}: {why})" for c, why in failed.items()), "")
        asked = f"none of the {len(clients)} clients asked for {request.work!r}"
        return f"Round {self.round}: {asked} gave a usable reply{first}."

    def report(self) -> dict[str, Any]:
        """What the layers say about the round."""
        return {name: value for fleet in reversed(layer_fleets(self)) for name, value in fleet.report().items()}


def _weights(fields: Fields) -> set[str]:
    return {field.by for field in fields.values() if field.by}


def _combined(updates: Tensor, a: Tensor | None, how: Callable[[Tensor], Tensor]) -> Tensor:
    """What the clients' updates are combined to, times their weights' sum; a may have an entry per objective."""
    if a is None:
        return how(updates) * len(updates)
    if a.dim() == 1:
        return how(updates) * a.sum()
    rows = [how(updates[a[:, s] > 0, s]) if (a[:, s] > 0).any() else updates[0, s] * 0 for s in range(a.shape[1])]
    return torch.stack(rows) * a.sum(0).reshape(-1, *[1] * (updates.dim() - 2))


def draw_cohort(examples: NDArray[np.int64], size: int, seed: int, purpose: str, t: int) -> list[int]:
    """Clients drawn uniformly without replacement among those that have examples, in order of their numbers."""
    able = None if examples.all() else np.flatnonzero(examples)
    there = len(examples) if able is None else len(able)
    k = min(size, there)
    drawn = np.arange(there) if k == there else np.sort(generator(seed, purpose, t).choice(there, k, replace=False))
    return [int(c) for c in (drawn if able is None else able[drawn])]
