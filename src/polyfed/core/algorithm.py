"""The base class of all methods: `init`, `round`, and hooks that a method may override."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor

from polyfed.core.door import Door
from polyfed.core.errors import BadInput
from polyfed.core.hooks import check_hooks
from polyfed.core.problem import Problem
from polyfed.core.registry import Registry

State = dict[str, Any]  # a tree of tensors, so that a checkpoint needs no help; 'x' and 'buffers' are the model
Remembered = Mapping[str, Tensor]
Diagnostics = Mapping[str, Tensor | float | int | str | Mapping[str, Any]]

OURS = ("settings", "server_optimizer")  # of a state: what a method's settings and its server's optimiser keep

algorithms: Registry[type[Any]] = Registry("algorithm", "polyfed.algorithms.objectives", "polyfed.algorithms.tasks")


class Algorithm(ABC):
    """A method: a dataclass of hyper-parameters whose `round` reads like its paper.

    pooled: whether it trains on all clients' rows at one place.
    """

    pooled: ClassVar[bool] = False

    @abstractmethod
    def init(self, problem: Problem) -> State:
        """The state before the first round: a tree of tensors, with the model as 'x' and 'buffers'."""

    @abstractmethod
    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        """Round t = 1, 2, ...: the next state, and what is worth logging."""

    def check(self, problem: Problem, clients: int) -> None:  # noqa: B027 (a hook that may be left out)
        """Refuse, before a run is begun, what does not go with this model or with so many clients."""

    def measure(self, state: State, fleet: Door) -> Mapping[str, Any]:
        """More to log at every evaluation; a true 'done' ends the run; a text there is why, for the summary."""
        return {}

    def personal(self, state: State, clients: Sequence[int]) -> Tensor | None:
        """Each client's own model, one row each, where the method learns one."""
        return None

    def server_step(self, x: Tensor, proposed: Tensor, kept: Remembered) -> tuple[Tensor, Remembered]:
        """Where the server goes from x when the round proposes another model, and what it keeps for the next round."""
        return proposed, {}

    def extras(self, state: State) -> Mapping[str, Tensor]:
        """More arrays for the model file."""
        return {}

    @property
    def needs(self) -> Literal["sums", "replies"]:
        """Whether sums of replies are enough for this method, or it needs every single one."""
        return "replies"

    @property
    def title(self) -> str:
        """What it is called in experiments."""
        return algorithms.name_of(type(self))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_hooks(cls, Algorithm)


def run_round(method: Algorithm, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
    """A method's round, and whether it returned what it should."""
    fleet.remembered = state.get("settings", {})
    returned: Any = method.round(t, {key: value for key, value in state.items() if key not in OURS}, fleet)
    name = type(method).__name__
    if not (isinstance(returned, tuple) and len(returned) == 2 and all(isinstance(r, Mapping) for r in returned)):
        found = type(returned).__name__
        raise BadInput(f"{name}.round should return the next state and a dict of what to log. Found {found}.")
    if missing := next((array for array in ("x", "buffers") if array not in returned[0]), None):
        raise BadInput(f"{name}.round should return a state with 'x' and 'buffers'; {missing!r} is not in it.")
    after, logged = returned
    x, stepped = method.server_step(state["x"], after["x"], state.get("server_optimizer", {}))
    more = {"settings": _kept(method, fleet.remembered, logged), "server_optimizer": dict(stepped)}
    return {**after, "x": x, **{key: kept for key, kept in more.items() if kept}}, logged


def _kept(method: Algorithm, before: Mapping[str, Any], logged: Diagnostics) -> State:
    """What settings that remember something keep for the next round."""
    those = {key: value for key, value in vars(method).items() if hasattr(value, "remembered")}
    found = {key: value.remembered(before.get(key, {}), logged) for key, value in those.items()}
    return {key: kept for key, kept in found.items() if kept}
