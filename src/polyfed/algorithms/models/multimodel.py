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

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from polyfed.algorithms import Algorithm, State
from polyfed.algorithms.models.schedules import Schedule, schedules
from polyfed.core.errors import BadInput, NobodyAnswered
from polyfed.core.fleet import Door
from polyfed.core.problem import Problem
from polyfed.run.doors import Doors, ModelDoor
from polyfed.run.models import Models, qualified

Step = tuple[State, Mapping[str, Any]]


@dataclass(frozen=True)
class MultiModel:
    """Trains several models at once. models: a problem and a method for each, by name; schedule: 'mfa-rr',
    'mfa-rand', or a function of (t, M, partition) that returns each model's group."""

    models: Mapping[str, tuple[Problem, Algorithm]]
    schedule: str | Schedule = "mfa-rr"

    def __post_init__(self) -> None:
        if not self.models:
            raise BadInput("There should be at least one model. Found none.")
        pooled = [name for name, (_, method) in self.models.items() if getattr(method, "pooled", False)]
        if pooled:
            raise BadInput(f"Model {pooled[0]!r}: a centralised method has no clients to share; choose another method.")
        if isinstance(self.schedule, str):
            schedules[self.schedule]  # an unknown name ends here

    @cached_property
    def problem(self) -> Models:
        """All models as one problem."""
        return Models({name: problem for name, (problem, _) in self.models.items()})

    @cached_property
    def methods(self) -> dict[str, Algorithm]:
        """Each model's method, its frames as long as there are models."""
        return {name: _framed(method, len(self.models)) for name, (_, method) in self.models.items()}

    @property
    def name(self) -> str:
        """What the schedule is called."""
        return self.schedule if isinstance(self.schedule, str) else getattr(self.schedule, "__name__", "own")

    @property
    def assign(self) -> Schedule:
        return schedules[self.schedule] if isinstance(self.schedule, str) else self.schedule

    def init(self, problem: Problem) -> State:
        return {"models": {name: self.methods[name].init(one) for name, (one, _) in self.models.items()}}

    def round(self, t: int, state: State, fleet: Door) -> Step:
        """Algorithm 1, steps 6 to 15."""
        assert isinstance(fleet, Doors)
        before = state["models"]
        steps = fleet.together({m: partial(self._step, m, t, before[m], fleet.models[m]) for m in self.models})
        trained = {m: step for m, step in steps.items() if not isinstance(step, NobodyAnswered)}
        for why in steps.values() if not trained else ():
            assert isinstance(why, NobodyAnswered)
            raise why
        after = {m: trained[m][0] if m in trained else before[m] for m in self.models}
        idle = [m for m in self.models if m not in trained]
        found = self._by_name({m: diagnostics for m, (_, diagnostics) in trained.items()})
        return {"models": after}, {**self._assigned(t, fleet), "idle": idle, **found}

    def _step(self, m: str, t: int, state: State, door: ModelDoor) -> Step | NobodyAnswered:
        """One model's round, or why it has none."""
        try:
            if not door.cohort(t):
                return NobodyAnswered(f"Round {t}: no client assigned to model {m!r} has rows for it.")
            return self.methods[m].round(t, state, door)
        except NobodyAnswered as error:
            door.rewind()  # the model is as before the round, and so must be what its clients keep
            return error

    def _assigned(self, t: int, fleet: Doors) -> dict[str, Any]:
        """Who trained what, and how many had nothing to train it on."""
        groups = dict(zip(self.models, fleet.groups(t), strict=True))
        active = {m: fleet.models[m].cohort(t) for m in self.models}
        return {"groups": active, "passed_over": {m: len(groups[m]) - len(active[m]) for m in self.models}}

    def _by_name(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """What the models' methods log: vectors over objectives by 'model/objective', the rest by model."""
        table: dict[str, dict[str, Any]] = {}
        for m, diagnostics in found.items():
            names = self.models[m][0].names
            for key, value in diagnostics.items():
                each = isinstance(value, Tensor) and value.shape == (len(names),)
                row = {qualified(m, n): v for n, v in zip(names, value.tolist(), strict=True)} if each else {m: value}
                table.setdefault(key, {}).update(row)
        return table

    def measure(self, state: State, fleet: Doors) -> dict[str, Any]:
        """What the models' methods measure of their own; the run is done when all of them are."""
        hooks = {m: hook for m, method in self.methods.items() if (hook := getattr(method, "measure", None))}
        found = {m: dict(hook(state["models"][m], fleet.models[m])) for m, hook in hooks.items()}
        done = [bool(row.pop("done", False)) for row in found.values()]
        return {**self._by_name(found), "done": len(done) == len(self.models) and all(done)}

    def extras(self, state: State) -> dict[str, Tensor]:
        """What the models' methods save beside the weights, under the model's name."""
        hooks = {m: hook for m, method in self.methods.items() if (hook := getattr(method, "extras", None))}
        return {f"{m}.{name}": value for m, hook in hooks.items() for name, value in hook(state["models"][m]).items()}


def _framed(method: Any, M: int) -> Any:
    """The method with 'frame' replaced by the number of rounds it is, in its step sizes and batches."""
    if not is_dataclass(method) or isinstance(method, type):
        return method
    values = {field.name: getattr(method, field.name) for field in fields(method)}
    frames = {n: replace(v, every=M) for n, v in values.items() if getattr(v, "every", None) == "frame"}
    return replace(method, **frames) if frames else method
