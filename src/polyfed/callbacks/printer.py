"""One plain line a round, where there is no terminal for a progress bar: notebooks, logs, pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field
from rich.filesize import decimal

from polyfed.callbacks.checked import checked
from polyfed.core.errors import visible
from polyfed.core.settings import whole
from polyfed.run.callbacks import Callback, RunView, callbacks
from polyfed.run.display import Progress

if TYPE_CHECKING:
    from polyfed.run.loop import Result

LINES = 50  # of a run that is watched by `progress=True`
OBJECTIVES = 6  # of a line


@callbacks("printer")
@checked
class Printer(Callback):
    """One line a round on stderr: losses and metrics, bytes, seconds, and how many replies failed.

    Args:
        every: rounds between two lines; the last round always has one.
    """

    optional = True

    def __init__(self, *, every: Annotated[int, Field(ge=1), BeforeValidator(whole)] = 1) -> None:
        self.every = every
        self._printed = 0
        self._line: Mapping[str, Any] = {}

    def on_start(self, run: RunView) -> None:
        self._printed = run.round

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        self._line = line
        for sentence in line.get("choices", ()):
            print(visible(sentence), file=sys.stderr, flush=True)
        if run.round % self.every == 0:
            self._print(run)

    def on_end(self, run: RunView, result: Result | None) -> None:
        if run.round > self._printed:
            self._print(run)

    def _print(self, run: RunView) -> None:
        self._printed = run.round
        print(f"round {run.round}/{run.rounds}  {described(self._line)}", file=sys.stderr, flush=True)


def described(line: Mapping[str, Any]) -> str:
    """A round's figures in a line of text."""
    losses, metrics = line.get("losses", {}), line.get("metrics", {})
    figures = [
        " ".join([visible(name), _number("loss", loss), *(_number(m, v) for m, v in metrics.get(name, {}).items())])
        for name, loss in list(losses.items())[:OBJECTIVES]
    ]
    more = [f"and {len(losses) - OBJECTIVES} more"] if len(losses) > OBJECTIVES else []
    failed = [f"{len(line['failures'])} failed"] if line["failures"] else []
    traffic = decimal(line["bytes_up"] + line["bytes_down"])
    return "  ".join([*figures, *more, traffic, f"{line['seconds']:.2f} s", *failed])


def _number(name: str, value: float | None) -> str:
    return f"{visible(name)} {'-' if value is None else format(value, '.4g')}"


def shown_progress(rounds: int) -> Callback:
    """The bar and the curves of the command line in a terminal; elsewhere plain lines, not too many.

    Args:
        rounds: how many there will be.
    """
    terminal = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")  # whose cursor moves
    return Progress() if terminal else Printer(every=max(1, rounds // LINES))
