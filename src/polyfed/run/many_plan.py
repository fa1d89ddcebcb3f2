"""A run of many models: the plan, and the evaluation of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from polyfed.algorithms import State
from polyfed.algorithms.models.multimodel import MultiModel
from polyfed.core.client import Wrappers
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation
from polyfed.core.fleet import Door, Engine, Fleet
from polyfed.run.doors import Doors, Engines
from polyfed.run.evaluation import Evaluation, Personal, fits
from polyfed.run.loop import Plan
from polyfed.run.models import check_cohort, pool_size, qualified

BY_OBJECTIVE = ("losses", "metrics", "clients")


class Evaluations(Evaluation):
    """Every model's evaluation; what is by objective is by 'model/objective', the rest by model."""

    def __init__(
        self, algorithm: MultiModel, federations: Mapping[str, Federation], settings: Mapping[str, Any]
    ) -> None:
        problems = algorithm.problem.problems
        self.models = {name: Evaluation(problems[name], federations[name], **settings) for name in problems}
        self.every = next(iter(self.models.values())).every
        self._personal = {name: getattr(method, "personal", None) for name, method in algorithm.methods.items()}

    def more(self, t: int, before: State, after: State, fleet: Door, rounds: int) -> dict[str, Any]:
        assert isinstance(fleet, Doors)
        old, new = before["models"], after["models"]
        asked = {m: one for m, one in self.models.items() if fleet.models[m].asked}  # an idle model has not changed
        return _by_model({m: one.more(t, old[m], new[m], fleet.models[m], rounds) for m, one in asked.items()})

    def __call__(self, state: State, fleet: Door, personal: Personal | None = None) -> dict[str, Any]:
        assert isinstance(fleet, Doors)
        states = state["models"]
        return _by_model({m: one(states[m], fleet.models[m], self._personal[m]) for m, one in self.models.items()})


def _by_model(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for m, row in found.items():
        for key, value in row.items():
            named = {qualified(m, name): v for name, v in value.items()} if key in BY_OBJECTIVE else {m: value}
            table.setdefault(key, {}).update(named)
    return table


@dataclass(frozen=True)
class ManyPlan(Plan):
    """A plan whose algorithm is a `MultiModel`; federations has each model's."""

    federations: Mapping[str, Federation] = field(default_factory=dict)

    def door(self, meter: Fleet) -> Door:
        assert isinstance(self.algorithm, MultiModel)
        return Doors(
            meter, self.algorithm.problem, self.federations, self.algorithm.assign, self.around,
            seed=self.seed, cohort=self.cohort, rounds=self.rounds,
        )  # fmt: skip

    def evaluation(self) -> Evaluation:
        assert isinstance(self.algorithm, MultiModel)
        return Evaluations(self.algorithm, self.federations, self.evaluate)

    def weights(self, state: State) -> dict[str, Tensor]:
        assert isinstance(self.algorithm, MultiModel)
        return self.algorithm.problem.weights(state["models"])


def starter(
    algorithm: MultiModel, federations: Mapping[str, Federation], engine: partial[Engine], wrappers: Wrappers
) -> Callable[[], Engine]:
    """Starts an engine for each model."""
    parts = {m: (problem, federations[m]) for m, (problem, _) in algorithm.models.items()}
    return partial(Engines.start, engine, parts, wrappers, algorithm.problem.names)


def check_models(algorithm: MultiModel, federations: Mapping[str, Federation], cohort: int) -> None:
    """Refuse what cannot be trained together, before anything is written."""
    if set(federations) != set(algorithm.models):
        raise BadInput(f"Each model needs a federation. Found {sorted(federations)} for {sorted(algorithm.models)}.")
    check_cohort(len(federations), cohort, pool_size(federations))
    for name, (problem, method) in algorithm.models.items():
        fits(problem, federations[name], method)
