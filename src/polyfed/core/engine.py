"""The base class of engines: where clients' work is done."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.core.choices import Choices
from polyfed.core.expecting import Expecting, sent
from polyfed.core.fleet import Fleet, Ids, Population, Stack, Sum
from polyfed.core.guard import SHARE, Guard
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Parts
from polyfed.core.registry import Registry
from polyfed.core.schema import Schema
from polyfed.core.validate import Expected
from polyfed.core.work import works


class Engine(Fleet):
    """A Fleet that does the work, for all parts of a run; a request names its part.

    Override `replies`. Single replies are checked here, for `ask` and `sum` alike. Where work is done in this process,
    the requests of several parts take turns, whole exchanges at a time: torch has one random generator for dropout.

    Args:
        parts: the models, their data and their methods.
        layers: the layers, whose client halves the engine applies (`polyfed.client.runner`).
    """

    durable = False  # whether clients keep their state themselves, so that the server must not run ahead of its disk
    device = torch.device("cpu")  # on which this process computes, the server's own measurements included
    overlaps = False  # whether requests from several threads are worked on side by side, or one after the other

    def __init__(self, parts: Parts, layers: Layers) -> None:
        self.parts, self.layers = dict(parts), layers
        self.population = {name: Population.of(part.problem, part.federation) for name, part in parts.items()}
        self._guards: dict[str, list[Guard]] = {}  # of each part's last round
        self._buffers: dict[str, Tensor] = {}  # each part's, as last sent
        self.medians: dict[str, list[float]] = {}  # the largest so far of everything the guard compares
        self.choices = Choices()  # how work is done, found by a trial
        self._expecting = Expecting()
        self._lock = threading.RLock()

    @abstractmethod
    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        """Do the work of a request, stamped and addressed, and yield replies in the order of `clients`."""

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        with self._turn():
            replies = self.replies(clients, request)
            first = next(replies, None)  # a GPU works while what is expected is put together
            expected = self.expected(request)
            guard = self.guard(request, expected)
            yield from guard(map(expected.validated, chain([] if first is None else [first], replies)))
            self.note_medians(request, guard)

    def sum(self, clients: Ids, request: Request) -> Sum:
        with self._turn():  # a wait for the GPU would end what another model's thread records
            return Sum.of(self.ask(clients, request)).to_host()

    def expected(self, request: Request) -> Expected:
        """What the server knows of the replies to this request; clients have the buffers they were last sent."""
        if "buffers" in request.shared:
            self._buffers[request.part] = request.shared["buffers"]
        known = self._buffers.get(request.part)
        return self._expecting(self.parts[request.part], self.population[request.part], self.layers, request, known)

    def guard(self, request: Request, expected: Expected) -> Guard:
        """The guard of an exchange; its lengths are kept until the next round, should one have spoiled it."""
        so_far = self.medians.get(_exchange(request, expected.labels))
        guard = expected.guard(None if so_far is None else SHARE * np.array(so_far))
        if not request.exchange:
            self._guards[request.part] = []
        self._guards.setdefault(request.part, []).append(guard)
        return guard

    def note_medians(self, request: Request, guard: Guard) -> None:
        """Keep an exchange's medians where they are the largest so far."""
        if not guard.labels or not guard.on:
            return
        of = _exchange(request, guard.labels)
        so_far = self.medians.get(of, [0.0] * len(guard.labels))
        self.medians[of] = np.maximum(so_far, guard.median()).tolist()

    def far(self) -> dict[int, float]:
        """How many times the median each client's longest array was in the last round."""
        found: dict[int, float] = {}
        for guard in (guard for guards in self._guards.values() for guard in guards):
            found |= {c: max(ratio, found.get(c, 0.0)) for c, ratio in guard.farthest().items()}
        return found

    def schema(self, request: Request) -> Schema:
        """Shape and type of every array of a reply to this request, as it travels."""
        return schema_of_reply(self.parts, self.layers, request)

    def _turn(self) -> Any:
        return nullcontext() if self.overlaps or len(self.parts) == 1 else self._lock

    def tree(self) -> dict[str, Any]:
        """What each part's clients remember, for the checkpoint."""
        return {name: {} for name in self.parts}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""

    def refusals(self) -> list[str]:
        """Strangers that were refused since this was last asked, and why: who is no client has no number to fail by."""
        return []

    def close(self) -> None:
        """Let go of processes and connections."""


def _exchange(request: Request, labels: Sequence[str]) -> str:
    """Exchanges whose lengths may be compared: of one model and work, with as many columns."""
    return f"{request.part}/{request.work}/{len(labels)}"


def schema_of_reply(parts: Parts, layers: Layers, request: Request) -> Schema:
    """What a reply to a request should hold when it arrives."""
    return sent(parts[request.part], layers.transported(works[request.work], request.options), request)


def expected_replies(
    parts: Parts, population: Population, layers: Layers, request: Request, buffers: Tensor | None = None
) -> Expected:
    """What a server that knows these clients expects of their replies; buffers: those that they start from."""
    return Expecting()(parts[request.part], population, layers, request, buffers)


engines: Registry[Callable[..., Engine]] = Registry("engine", "polyfed.engines", modules=("polyfed.deploy.engine",))
