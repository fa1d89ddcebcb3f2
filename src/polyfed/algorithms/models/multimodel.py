"""Many models, one pool of clients: MFA-Rand and MFA-RR over any method.

Bhuyan, Moharir, Joshi, "Multi-Model Federated Learning with Provable Guarantees", 2022, Algorithm 1. In round t the
schedule P (`schedules.py`) cuts the clients into disjoint groups, one a model; every client trains the one model it
was given, and each model's update is what its own method makes of its group's replies. In the paper that method is
FedAvg; here it is any: it sees a door of its own, whose cohort is the group. A model's update is the mean over its
group: the proof's 1/N in place of M/N, equation (19), would make the gain of training together exactly 1.

All models' exchanges of a round go out together. A client that has no rows for the model it is given is passed over
and counted; a model whose whole group was passed over, or gave no usable reply, stays as it is for that round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfed.algorithms.models.schedules import Groups, Schedule, schedules, split
from polyfed.core.algorithm import Algorithm, State, run_round
from polyfed.core.door import Door, draw_cohort
from polyfed.core.errors import BadInput, NobodyAnswered, shown
from polyfed.core.keys import generator
from polyfed.core.problem import Problem

Step = tuple[State, Mapping[str, Any]]


@dataclass(frozen=True)
class MultiModel:
    """Several models to be trained at once, for `polyfed.train_many`.

    Args:
        models: a problem and a method for each, by name.
        schedule: 'mfa-rr', 'mfa-rand', or a function of (t, M, partition) that returns each model's group.
    """

    models: Mapping[str, tuple[Problem, Algorithm]]
    schedule: str | Schedule = "mfa-rr"

    def __post_init__(self) -> None:
        if not isinstance(self.models, Mapping):
            raise BadInput(f"models should be a dict of (problem, algorithm) by name. Found {shown(self.models)}.")
        if not self.models:
            raise BadInput("There should be at least one model. Found none.")
        for name, pair in self.models.items():
            _check_pair(name, pair)
        if isinstance(self.schedule, str):
            _ = schedules[self.schedule]  # an unknown name ends here

    @property
    def name(self) -> str:
        """What the schedule is called."""
        return self.schedule if isinstance(self.schedule, str) else getattr(self.schedule, "__name__", "own")

    @property
    def assign(self) -> Schedule:
        return schedules[self.schedule] if isinstance(self.schedule, str) else self.schedule


def _check_pair(name: str, pair: Any) -> None:
    kinds = [type(thing) for thing in pair] if isinstance(pair, tuple | list) else []
    if len(kinds) != 2 or not issubclass(kinds[0], Problem) or not issubclass(kinds[1], Algorithm):
        raise BadInput(
            f"Model {shown(name)} should be a pair of a polyfed.Problem and a polyfed.Algorithm, as in (problem, "
            f"polyfed.FedAvg()). Found {shown(pair)}."
        )


class ClientPool:
    """All models' clients: who takes part in a round, and which model each of them is given.

    Args:
        schedule: which groups train which models.
        models: how many models there are.
        examples: how many examples each client has, of all models together.
        cohort: how many clients take part in a round.
        seed: of the draws.
        always, never: clients that are in every cohort, and clients that are in none.
    """

    def __init__(
        self,
        schedule: Schedule,
        models: int,
        examples: NDArray[np.int64],
        cohort: int,
        seed: int,
        always: Sequence[int] = (),
        never: Sequence[int] = (),
    ) -> None:
        self._schedule, self._models, self._examples = schedule, models, examples
        self._cohort, self._seed, self._always, self._never = cohort, seed, always, never
        self._lock = threading.Lock()
        self._drawn: dict[str, tuple[int, Groups]] = {}  # the last partition for each purpose

    def groups(self, t: int, purpose: str = "cohort") -> Groups:
        """Each model's clients in round t, whether they have rows for it or not."""

        def partition(of: int) -> Groups:
            clients = draw_cohort(self._examples, self._cohort, self._seed, purpose, of, self._always, self._never)
            rng = generator(self._seed, purpose, of, "groups")
            return split(clients, self._models, rng) if self._models > 1 else [clients]

        return self._schedule(t, self._models, partition)

    def group(self, place: int, t: int, purpose: str) -> list[int]:
        """The clients of the model at a place; all models ask for the same partition."""
        with self._lock:
            if self._drawn.get(purpose, (0, []))[0] != t:
                self._drawn[purpose] = t, self.groups(t, purpose)
            return self._drawn[purpose][1][place]


class MultiModelRound:
    """Algorithm 1, steps 6 to 15: one round of all models, each by its own method through its own door."""

    def __init__(self, methods: Mapping[str, Algorithm], doors: Mapping[str, Door], pool: ClientPool) -> None:
        self.methods, self.doors, self.pool = methods, doors, pool
        threads = partial(torch.set_num_threads, torch.get_num_threads())
        self._threads = ThreadPoolExecutor(len(doors), "model", threads)

    def __call__(self, t: int, states: Mapping[str, State]) -> tuple[dict[str, State], dict[str, Any], dict[str, Any]]:
        """The models' next states, what each method logs, and who trained what."""
        steps = self._together({m: partial(self._step, m, t, states[m]) for m in self.methods})
        trained = {m: step for m, step in steps.items() if not isinstance(step, NobodyAnswered)}
        failures = [step for step in steps.values() if isinstance(step, NobodyAnswered)]
        if not trained:
            raise failures[0]
        after = {m: trained[m][0] if m in trained else states[m] for m in self.methods}
        idle = [m for m in self.methods if m not in trained]
        found = {m: dict(diagnostics) for m, (_, diagnostics) in trained.items()}
        return after, found, {**self._assigned(t), "idle": idle}

    def _step(self, m: str, t: int, state: State) -> Step | NobodyAnswered:
        """One model's round, or why it has none."""
        door = self.doors[m]
        try:
            if not door.cohort(t):
                return NobodyAnswered(f"Round {t}: no client assigned to model {m!r} has rows for it.")
            return run_round(self.methods[m], t, state, door)
        except NobodyAnswered as error:
            door.rewind()  # the model is as before the round, and so must be what its clients keep
            return error

    def _assigned(self, t: int) -> dict[str, Any]:
        """Who trained what, and how many had nothing to train it on."""
        groups = dict(zip(self.methods, self.pool.groups(t), strict=True))
        active = {m: self.doors[m].cohort(t) for m in self.methods}
        return {"groups": active, "passed_over": {m: len(groups[m]) - len(active[m]) for m in self.methods}}

    def _together(self, calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """What all models' calls return, made at the same time; an error of the first model that has one is raised."""
        if len(calls) == 1:
            return {name: call() for name, call in calls.items()}
        begun = {name: self._threads.submit(call) for name, call in calls.items()}
        for future in begun.values():
            future.exception()  # wait for all: a round that ends leaves nothing running
        return {name: future.result() for name, future in begun.items()}

    def close(self) -> None:
        self._threads.shutdown()


def qualified(model: str, objective: str) -> str:
    """An objective's name among those of several models, 'model/objective'; alone it is its own."""
    return f"{model}/{objective}" if model else objective


def check_cohort(models: Sequence[str], cohort: int, clients: int) -> None:
    """In every round there is at least one client for each model."""
    if len(models) > cohort:
        who = f"the {clients} clients" if cohort == clients else f"the cohort of {cohort} clients"
        raise BadInput(f"Each model needs a client in every round. Found {len(models)} models for {who}; train fewer.")
