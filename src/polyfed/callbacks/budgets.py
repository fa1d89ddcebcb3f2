"""Stop when the time or the bytes that a run may take are spent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from rich.filesize import decimal

from polyfed.callbacks.checked import checked
from polyfed.core.settings import Positive
from polyfed.run.callbacks import Callback, RunView, callbacks


class Budget(Callback, ABC):
    """Adds up what rounds cost, those before a resume included; the round that goes beyond the limit is the last."""

    limit: float
    spent = 0.0

    def on_start(self, run: RunView) -> None:
        self.spent = sum(map(self.cost, run.history()))  # whatever watched it before
        self._stop_if_spent(run)

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        self.spent += self.cost(line)
        self._stop_if_spent(run)

    def _stop_if_spent(self, run: RunView) -> None:
        if self.spent >= self.limit:
            run.stop(f"Stopped after round {run.round}: {self.said()}", for_good=False)

    @abstractmethod
    def cost(self, line: Mapping[str, Any]) -> float:
        """What a round cost."""

    @abstractmethod
    def said(self) -> str:
        """That the budget is spent."""


@callbacks("time-budget")
@checked
class TimeBudget(Budget):
    """Ends the run after the round in which its time is spent: seconds of all rounds, evaluations included.

    Args:
        seconds: how many, those before a resume included.
    """

    def __init__(self, *, seconds: Positive) -> None:
        self.limit = seconds

    def cost(self, line: Mapping[str, Any]) -> float:
        return float(line["seconds"])

    def said(self) -> str:
        return f"the time budget of {self.limit:g} s is spent."


@callbacks("byte-budget")
@checked
class ByteBudget(Budget):
    """Ends the run after the round in which its bytes are spent, without those of evaluations.

    Args:
        bytes: how many, those before a resume included.
        way: which are counted, 'up' from clients, 'down' to them, or 'both'.
    """

    def __init__(self, *, bytes: Positive, way: Literal["both", "up", "down"] = "both") -> None:
        self.limit, self.way = bytes, way

    def cost(self, line: Mapping[str, Any]) -> float:
        ways = ("up", "down") if self.way == "both" else (self.way,)
        return float(sum(line[f"bytes_{way}"] for way in ways))

    def said(self) -> str:
        way = "" if self.way == "both" else f" {self.way}"
        return f"the budget of {decimal(int(self.limit))}{way} is spent ({decimal(int(self.spent))})."
