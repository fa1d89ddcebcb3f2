"""Clients that send what they like, for tests of what the server believes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from polyfed import Federation, Layer, Problem, Result
from polyfed.core.engine import Engine, engines
from polyfed.core.fleet import Sum
from polyfed.core.layer import Layers, Outgoing, Stage
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.testing import open_door
from small import small_federation, small_problem


class Says(Layer):
    """Some clients change what they send."""

    stage: ClassVar[Stage] = "attack"

    def __init__(self, clients: Sequence[int], **change: Any) -> None:
        self.clients, self.change = clients, change

    @property
    def singly(self) -> Sequence[int]:
        return self.clients

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if not isinstance(out.client.id, int) or out.client.id not in self.clients:
            return out.arrays
        given = {n: torch.as_tensor(out.arrays[n]) for n in self.change if n in out.arrays}
        return {**out.arrays, **{n: self.change[n](a if n == "places" else a * 1.0) for n, a in given.items()}}


class SaysAlways(Says):
    """The same when they are measured."""

    measures: ClassVar[bool] = True


def asked(
    layer: Layer,
    request: Request,
    engine: str = "local",
    problem: Problem | None = None,
    federation: Federation | None = None,
    **more: Any,
) -> tuple[Sum, dict[int, str]]:
    """The sum of all clients' replies in round 1, and who failed why."""
    problem, federation = problem or small_problem(), federation or small_federation(**more)
    made: Engine = engines[engine]({"": Part(problem, federation)}, Layers((layer,)))
    door = open_door(problem, federation, made)
    door.begin(1)
    try:
        return door.sum(range(len(federation)), request), dict(door.failures)
    finally:
        made.close()


def named(result: Result) -> set[int]:
    """Who failed in a run."""
    return {failure["client"] for line in result.history for failure in line["failures"]}
