"""The door to the clients: ask some of them something, fold what comes back.

A Fleet may stand around another Fleet. From the engine outwards: `Metered` counts bytes; `PartView` is the fleet as one
model's clients, and stamps each exchange with the time; then the server's halves of the layers; and outermost the
`Door`, which is what an algorithm calls `fleet` (both in `core/door.py`).
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

from polyfed.core.clock import Clock
from polyfed.core.federation import SPLITS
from polyfed.core.messages import Reply, Request, size
from polyfed.core.problem import Problem
from polyfed.core.schema import Fields, weigh
from polyfed.core.work import works

if TYPE_CHECKING:
    from polyfed.core.federation import Federation

Ids = Sequence[int]
UNSAID = 10  # times its training examples: the rows kept aside that a client may have which has not said how many


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

    def to_host(self) -> Stack:
        return replace(self, arrays=to_host(self.arrays))

    def drop(self, bad: Mapping[int, str]) -> Stack:
        """Without some of the clients."""
        keep = [i for i, client in enumerate(self.clients) if client not in bad]
        arrays = {name: a[keep] for name, a in self.arrays.items()}
        return replace(self, clients=[self.clients[i] for i in keep], arrays=arrays, failed={**self.failed, **bad})

    def pick(self, rows: Sequence[int]) -> Stack:
        """The replies at these places alone, copied."""
        return Stack([self.clients[i] for i in rows], {name: a[list(rows)] for name, a in self.arrays.items()})

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

    def to_host(self) -> Sum:
        return replace(self, arrays=to_host(self.arrays))

    def copied(self, fields: Fields) -> Sum:
        """With updates of its own: a layer may give out what it remembers, and a method writes over what it gets."""
        own = {name: a.clone() for name, a in self.arrays.items() if name in fields and fields[name].role == "update"}
        return replace(self, arrays={**self.arrays, **own})


PINNED = 256 << 20  # bytes of an array that a GPU may write to by itself: such memory is never given back


def to_host(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Arrays in the host's memory. What comes from a GPU is written to pages that stay where they are, which takes a
    tenth of the time that pages take which the system has yet to find."""
    found = {name: _begun(a) for name, a in arrays.items()}
    for device in {a.device for a in arrays.values() if a.is_cuda}:
        torch.cuda.synchronize(device)
    return found


def _begun(a: Tensor) -> Tensor:
    """A copy that is under way."""
    if not a.is_cuda or a.numel() * a.element_size() > PINNED:
        return a.cpu()
    try:
        there = torch.empty(a.shape, dtype=a.dtype, pin_memory=True)
    except RuntimeError:  # the system has no more of such memory
        return a.cpu()
    return there.copy_(a, non_blocking=True)


@dataclass(frozen=True)
class Population:
    """What the server knows of one model and its clients: the objectives' names, how many examples each client has,
    which objectives it holds (clients x objectives), the type that the model is trained in, which part of its
    examples has a label for an objective (clients x objectives; as it holds them where no label is missing), the sizes
    of the letters that schemas are written in, how many rows each client keeps aside in the splits 'valid' and 'test',
    -1 where it has not said, and for which objectives those may have labels; for those that it holds if not given."""

    names: Sequence[str]
    examples: NDArray[np.int64]
    holds: NDArray[np.bool_]
    dtype: torch.dtype = torch.float32
    labelled: NDArray[Any] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    aside: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    may_hold: NDArray[np.bool_] | None = None

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Clients x objectives: where rows kept aside may have labels."""
        return self.holds if self.may_hold is None else self.may_hold

    def rows(self, split: str) -> NDArray[np.int64]:
        """The most rows of a split that each client may say it has: of those kept aside it may not have said."""
        if split not in SPLITS[1:]:
            return self.examples
        said = self.aside.get(split, np.full_like(self.examples, -1))
        return np.where(said < 0, UNSAID * self.examples, said)

    def sizes(self, request: Request) -> dict[str, int]:
        """Of all letters in the schema of a reply to this request."""
        return {**works[request.work].sizes(request.options), **self.dims}

    @property
    def fractions(self) -> NDArray[Any]:
        """n_is / n_i."""
        return self.holds if self.labelled is None else self.labelled

    @classmethod
    def of(cls, problem: Problem, federation: Federation) -> Population:
        holds, part = federation.matrix(problem.names), federation.fractions(problem.names)
        labelled = part if federation.labelled else None
        every = {split: rows for split in SPLITS[1:] if (rows := getattr(federation, split)) is not None}
        n = len(federation)  # whom a split does not name has none
        aside = {split: np.pad(rows.length, (0, n - len(rows))) for split, rows in every.items() if len(rows) <= n}
        may = federation.allowed(problem.names)
        return cls(problem.names, federation.examples, holds, problem.dtype, labelled, problem.dims, aside, may)


class Fleet(ABC):
    """Clients that can be asked."""

    @abstractmethod
    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        """Replies in the order of `clients`, some at a time; some clients never answer."""

    def sum(self, clients: Ids, request: Request) -> Sum:
        """Only the sum of the replies: what a cluster adds up on the way and secure aggregation can reveal.

        Whoever calls an algorithm's `fleet` may write over the updates in it.
        """
        return Sum.of(self.ask(clients, request))


class Metered(Fleet):
    """Counts bytes as the schema of the messages says; a test proves that they equal the bytes serialised.

    What only measures is counted apart, both ways together: no deployment would send it.
    """

    def __init__(self, inner: Fleet) -> None:
        self.inner = inner
        self.up = self.down = self.measuring = 0
        self._lock = threading.Lock()

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        each, left = self._length(clients, request), len(clients)
        for stack in self.inner.ask(clients, request):
            left -= len(stack.clients) + len(stack.failed)
            self._count(request, each * (len(stack.clients) + len(stack.failed)), _reply_bytes(stack.failed))
            if len(stack.clients):
                one = Reply({name: a[0] for name, a in stack.arrays.items()})
                self._count(request, up=one.nbytes * len(stack.clients))
            yield stack
        self._count(request, each * left)  # those that were asked and never heard of

    def sum(self, clients: Ids, request: Request) -> Sum:
        self._count(request, self._length(clients, request) * len(clients))
        total = self.inner.sum(clients, request)
        up = Reply(total.arrays).nbytes * len(total.clients)  # a sum is as long as its terms
        self._count(request, up=up + _reply_bytes(total.failed))
        return total

    @staticmethod
    def _length(clients: Ids, request: Request) -> int:
        if not len(clients):
            return 0
        row = request.row(0)
        return size(row.head(), row.arrays())

    def _count(self, request: Request, down: int = 0, up: int = 0) -> None:
        with self._lock:
            if works[request.work].measures:
                self.measuring += up + down
            else:
                self.up += up
                self.down += down


def _reply_bytes(failed: Mapping[int, str]) -> int:
    return sum(Reply(error=why).nbytes for why in failed.values())


class PartFleet(Fleet):
    """A fleet of one model's clients: who they are, and their time.

    names, examples, holds and fractions are the population's.
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

    @property
    def fractions(self) -> NDArray[Any]:
        return self.population.fractions

    def __len__(self) -> int:
        return len(self.examples)


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
