"""The methods. Each is a dataclass of hyper-parameters with one method, `round`, that reads like its paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from polyfed.core.fleet import Door
from polyfed.core.problem import Problem
from polyfed.core.registry import Registry

State = dict[str, Any]  # a tree of tensors, so that a checkpoint needs no help; 'x' and 'buffers' are the model
Diagnostics = Mapping[str, Tensor | float | int | str | Mapping[str, Any]]


class Algorithm(Protocol):
    """init gives the first state, round t = 1, 2, ... the next one and what is worth logging.

    A method may also have: check_clients(n), refusing what does not go with n clients before a run is begun;
    measure(state, fleet), more to log at every evaluation, whose 'done' ends the run; personal(state, clients), each
    client's own model; extras(state), more arrays for the model file; pooled = True, to train on all rows at one place.
    """

    def init(self, problem: Problem) -> State: ...

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]: ...


algorithms: Registry[type[Any]] = Registry("algorithm", f"{__name__}.objectives", f"{__name__}.tasks")
