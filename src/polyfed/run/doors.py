"""One pool of clients, a door to it for each model: an engine per model, and groups as the schedule says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from polyfed.algorithms.models.schedules import Groups, Schedule, split
from polyfed.core.client import Wrappers
from polyfed.core.federation import Federation
from polyfed.core.fleet import Around, Door, Engine, Fleet, Ids, Stack, Sum
from polyfed.core.keys import generator
from polyfed.core.messages import Request
from polyfed.core.problem import Problem
from polyfed.run.models import Models

T = TypeVar("T")
Names = tuple[str, ...]


class Engines(Engine):
    """An engine for each model behind one fleet: a request goes to the one it names. No engine knows of the others.

    Where the engines work in this process their requests take turns, whole exchanges at a time: torch has one random
    generator for dropout, and clients in turns would only get into each other's way.
    """

    def __init__(self, engines: Mapping[str, Engine], names: Names) -> None:
        self.engines, self.names = dict(engines), names
        self.examples = np.sum([engine.examples for engine in engines.values()], axis=0)
        self.holds = np.concatenate([engine.holds for engine in engines.values()], 1)
        self.durable = any(engine.durable for engine in engines.values())
        self.reduces = all(engine.reduces for engine in engines.values())
        self.overlaps = all(engine.overlaps for engine in engines.values())
        self._turn = contextlib.nullcontext() if self.overlaps else threading.Lock()

    @classmethod
    def start(
        cls, engine: partial[Engine], parts: Mapping[str, tuple[Problem, Federation]], wrappers: Wrappers, names: Names
    ) -> Engines:
        """All of them, or none: those that were started are closed when a later one cannot be.

        An engine that can serve several models with the same processes says how in `for_models`.
        """
        if hasattr(engine.func, "for_models"):
            return cls(engine.func.for_models(parts, wrappers, **engine.keywords), names)
        with contextlib.ExitStack() as started:
            engines = {}
            for name, (problem, federation) in parts.items():
                engines[name] = engine(problem, federation, wrappers)
                started.callback(engines[name].close)
            started.pop_all()
        return cls(engines, names)

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        with self._turn:
            yield from self.engines[request.model].ask(clients, request)

    def sum(self, clients: Ids, request: Request) -> Sum:
        with self._turn:
            return self.engines[request.model].sum(clients, request)

    def tree(self) -> dict[str, Any]:
        return {name: engine.tree() for name, engine in self.engines.items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for name, engine in self.engines.items():
            engine.load(tree.get(name, {}))

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()


class About(Around):
    """The fleet as one model sees it: its objectives, its data, and its name on every request."""

    def __init__(self, inner: Fleet, model: str, problem: Problem, federation: Federation) -> None:
        super().__init__(inner)
        self.reduces = inner.reduces
        self.model, self.names = model, problem.names
        self.examples, self.holds = federation.examples, federation.matrix(problem.names)

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        return self.inner.ask(clients, replace(request, model=self.model))

    def sum(self, clients: Ids, request: Request) -> Sum:
        return self.inner.sum(clients, replace(request, model=self.model))


class ModelDoor(Door):
    """One model's door: the clients of a round are those of the group it was assigned that have rows for it."""

    assign: Callable[[int, str], list[int]]  # round, purpose -> its group

    def cohort(self, t: int, purpose: str = "cohort", size: int | None = None) -> list[int]:
        """The group; with a size, that many of all clients, for what is no part of training."""
        if size is not None:
            return super().cohort(t, purpose, size)
        return [c for c in self.assign(t, purpose) if self.examples[c]]


class Doors(Door):
    """A door for each model. Its own cohort is the pool's; `groups` is the schedule's cut of it into models' groups.

    Each model has its own clock, failures and acknowledgements, and one thread uses it at a time, so that nothing
    here depends on which model is fastest.
    """

    problem: Models

    def __init__(
        self,
        inner: Fleet,
        problem: Models,
        federations: Mapping[str, Federation],
        schedule: Schedule,
        around: Callable[[Fleet], Fleet],
        *,
        seed: int,
        cohort: int,
        rounds: int,
    ) -> None:
        self.models: dict[str, ModelDoor] = {}
        super().__init__(inner, problem, seed=seed, cohort=cohort, rounds=rounds)
        self._schedule = schedule
        self._drawn: dict[str, tuple[int, Groups]] = {}  # the last partition for each purpose
        for place, (name, one) in enumerate(problem.problems.items()):
            fleet = around(About(inner, name, one, federations[name]))
            door = self.models[name] = ModelDoor(fleet, one, seed=seed, cohort=cohort, rounds=rounds)
            door.assign = partial(self._group, place)
        self._threads = ThreadPoolExecutor(
            len(self.models), "model", partial(torch.set_num_threads, torch.get_num_threads())
        )

    def begin(self, t: int) -> None:
        super().begin(t)
        for door in self.models.values():
            door.begin(t)

    def rewind(self) -> None:
        for door in self.models.values():
            door.rewind()

    def groups(self, t: int, purpose: str = "cohort") -> Groups:
        """Each model's clients in round t, whether they have rows for it or not."""
        M = len(self.models)

        def partition(of: int) -> Groups:
            rng = generator(self.seed, purpose, of, "groups")
            return split(self.cohort(of, purpose), M, rng) if M > 1 else [self.cohort(of, purpose)]

        return self._schedule(t, M, partition)

    def _group(self, place: int, t: int, purpose: str) -> list[int]:
        with self._lock:
            if self._drawn.get(purpose, (0, []))[0] != t:
                self._drawn[purpose] = t, self.groups(t, purpose)
            return self._drawn[purpose][1][place]

    def together(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """What all models' calls return, made at the same time; an error of the first model that has one is raised."""
        if len(calls) == 1:
            return {name: call() for name, call in calls.items()}
        begun = {name: self._threads.submit(call) for name, call in calls.items()}
        for future in begun.values():
            future.exception()  # wait for all: a round that ends leaves nothing running
        return {name: future.result() for name, future in begun.items()}

    def report(self) -> dict[str, Any]:
        """What the layers around the models' fleets say, by model."""
        found: dict[str, Any] = {}
        for name, door in self.models.items():
            for key, value in door.report().items():
                found.setdefault(key, {})[name] = value
        return found

    @property
    def asked(self) -> dict[int, None]:
        """All models' participants."""
        return {client: None for door in self.models.values() for client in door.asked}

    @asked.setter
    def asked(self, value: dict[int, None]) -> None:
        """Each model's door keeps its own."""

    @property
    def failures(self) -> list[tuple[int, str]]:
        return [(client, f"{name}: {why}") for name, door in self.models.items() for client, why in door.failures]

    @failures.setter
    def failures(self, value: list[tuple[int, str]]) -> None:
        """Each model's door keeps its own."""

    def tree(self) -> dict[str, Any]:
        return {name: door.tree() for name, door in self.models.items()}

    def load(self, tree: Mapping[str, Any]) -> None:
        for name, door in self.models.items():
            door.load(tree.get(name, {}))
