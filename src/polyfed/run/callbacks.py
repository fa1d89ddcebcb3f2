"""Callbacks: told of a run as it goes on, with the state, the model on demand, and the power to stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from polyfed.core.algorithm import State
from polyfed.core.hooks import check_hooks
from polyfed.core.registry import Registry
from polyfed.run.directory import RunDirectory

if TYPE_CHECKING:
    from polyfed.run.loop import Result
    from polyfed.run.plan import Plan

callbacks: Registry[Callable[..., Any]] = Registry("callback", "polyfed.callbacks", modules=("polyfed.run.display",))


class RunView:
    """A run as callbacks see it.

    Args:
        plan: what is run.
        path: the run's directory.
        round: how many rounds are done.
        states: each model's state, by its name; one model alone is called ''.
    """

    def __init__(self, plan: Plan, path: Path, round: int, states: Mapping[str, State]) -> None:
        self.plan, self.path, self.round, self.states = plan, path, round, states
        self.stopping = self.for_good = False
        self.why = ""

    @property
    def rounds(self) -> int:
        """How many rounds there will be."""
        return self.plan.rounds

    @property
    def state(self) -> State:
        """The state of the one model; of several, see `states`."""
        (state,) = self.states.values()
        return state

    def model(self) -> nn.Module:
        """A copy of the model as it is now, in evaluation mode; of several, an `nn.ModuleDict`."""
        return self.plan.trained(self.plan.weights(self.states))

    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl so far, one a round."""
        return RunDirectory(self.path).history()

    def stop(self, why: str = "", *, for_good: bool = True) -> None:
        """End the run after this round, as if it were the last.

        Args:
            why: a sentence for the summary.
            for_good: whether the run is over when it is resumed, too; if not, who stopped it says so again when it
                starts, from what it remembers.
        """
        self.stopping, self.why = True, self.why or why
        self.for_good = self.for_good or for_good


class Callback:
    """Base class: override what it wants to hear of.

    One that raises ends the run after everybody has heard of the round, which is kept; an `optional` one is warned of,
    once, and the run goes on.
    """

    optional: bool = False

    def check(self, plan: Plan) -> None:
        """Refuse, before a run is begun, what does not go with it."""

    def on_start(self, run: RunView) -> None:
        """The run begins, or goes on."""

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        """A round is done; line: what is logged of it."""

    def on_evaluation(self, run: RunView, line: Mapping[str, Any]) -> None:
        """A round with an evaluation is done; line has 'losses' and 'metrics'."""

    def on_end(self, run: RunView, result: Result | None) -> None:
        """The run is over; result: what it leaves, None if it stopped before its end."""

    def summary(self, run: RunView) -> Mapping[str, Any]:
        """More for the run's summary, asked for when all rounds are done."""
        return {}

    def tree(self) -> dict[str, Any]:
        """What it remembers, a tree of tensors for the checkpoint."""
        return {}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_hooks(cls, Callback)
