"""What trackers share: the numbers of a round, by name; and that they never stop a run."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from polyfed.core.errors import BadInput
from polyfed.run.callbacks import Callback, RunView

if TYPE_CHECKING:
    from polyfed.run.loop import Result
    from polyfed.run.plan import Plan

COUNTED = ("cohort", "failures")  # lists of which the length is a number worth having


class Tracker(Callback, ABC):
    """Hands the numbers of every line of metrics.jsonl on; a run that is resumed goes on from its last round.

    Args:
        optional: whether a run goes on where the tracker fails, with a warning.
    """

    package: ClassVar[str] = ""  # what it needs
    extra: ClassVar[str] = ""  # with which it comes

    def __init__(self, *, optional: bool = True) -> None:
        self.optional = optional

    def check(self, plan: Plan) -> None:
        if self.package and importlib.util.find_spec(self.package) is None:
            raise BadInput(
                f"{type(self).__name__} needs the package {self.package}: pip install 'polyfed[{self.extra}]'."
            )

    def on_start(self, run: RunView) -> None:
        self.begin(run)

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        self.log(run, numbers(line))

    def on_end(self, run: RunView, result: Result | None) -> None:
        self.close(complete=result is not None)

    @abstractmethod
    def begin(self, run: RunView) -> None:
        """Open what is logged to, and forget what comes after the round that the run goes on from."""

    @abstractmethod
    def log(self, run: RunView, values: Mapping[str, float]) -> None:
        """The numbers of a round."""

    def close(self, *, complete: bool) -> None:
        """Nothing more comes; complete: whether the run came to its end."""


def numbers(line: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a line of metrics.jsonl, tables in tables by names such as 'metrics/left/accuracy'.

    Of who took part and who failed, how many; other lists and texts are left out, and so is what is null.
    """
    found: dict[str, float] = {}
    for key, value in line.items():
        name = prefix + key
        if isinstance(value, Mapping):
            found |= numbers(value, f"{name}/")
        elif isinstance(value, list) and name in COUNTED:
            found[name] = len(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
    return found


def place(run: RunView, path: str) -> Path:
    """Where a tracker writes: its path in the run's directory, or an absolute one."""
    return run.path.absolute() / path
