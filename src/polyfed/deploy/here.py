"""Where this process stands in a deployment: the server behind a Grid, or a client that only wants to know its part.

An experiment's plan makes its engines by name, one for each model. On the server those are the Grid's clients; on a
client the plan is built the same way, and its engines only note what they were given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.core.client import Wrappers
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation
from polyfed.core.fleet import Engine, Ids, Stack
from polyfed.core.messages import Request
from polyfed.core.problem import Problem

if TYPE_CHECKING:
    from flwr.serverapp import Grid


@dataclass
class Server:
    """A Grid, and the directory of the run whose clients it reaches."""

    grid: Grid
    run: Path
    models: int = 0

    def engine(
        self, problem: Problem, federation: Federation, wrappers: Wrappers, settings: Mapping[str, Any]
    ) -> Engine:
        from polyfed.deploy.engine import OverGrid

        model, self.models = self.models, self.models + 1
        roster = self.run / f"clients-{model}.json"
        return OverGrid(problem, self.grid, len(federation), roster=roster, model=model, **settings)


class Noted(Engine):
    """What an engine was given; nobody is asked anything."""

    def __init__(self, problem: Problem, federation: Federation, wrappers: Wrappers) -> None:
        self.names, self.examples = problem.names, federation.examples
        self.holds = federation.matrix(problem.names)
        self.problem, self.federation, self.wrappers = problem, federation, wrappers

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        raise NotImplementedError


@dataclass
class Client:
    """The parts of an experiment, a triple for each model."""

    parts: list[Noted] = field(default_factory=list)

    def engine(
        self, problem: Problem, federation: Federation, wrappers: Wrappers, settings: Mapping[str, Any]
    ) -> Engine:
        self.parts.append(Noted(problem, federation, wrappers))
        return self.parts[-1]


_here: ContextVar[Server | Client | None] = ContextVar("here", default=None)


@contextmanager
def standing(place: Server | Client) -> Iterator[None]:
    """For as long as this lasts, engines 'flower' at address 'superlink' belong to this place."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


def connect(problem: Problem, federation: Federation, wrappers: Wrappers, **settings: Any) -> Engine:
    place = _here.get()
    if place is None:
        raise BadInput("engine.address = 'superlink' belongs to a Flower deployment: make its app with 'polyfed "
                       "flower init DIR', and start or resume it with 'flwr run DIR'.")  # fmt: skip
    return place.engine(problem, federation, wrappers, settings)
