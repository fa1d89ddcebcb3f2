"""How far a search is, while it runs: a line for each trial that ends, and in a terminal a bar and who is at work."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from polyfed.core.errors import visible
from polyfed.study.parameters import Parameter
from polyfed.study.runner import Line
from polyfed.study.sampling import Values
from polyfed.study.tuned import shown_value

MOST = 4  # figures in a line


class Watch:
    """Is told how far a search is, and shows nothing.

    Args:
        parameters: what is searched.
        trials: how many there will be.
    """

    def __init__(self, parameters: Sequence[Parameter], trials: int) -> None:
        self.parameters, self.trials = parameters, trials

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def note(self, text: str) -> None:
        """Something is to be said."""

    def began(self, trial: int, values: Values) -> None:
        """A trial begins, goes on, or was found finished."""

    def line(self, trial: int, line: Line) -> None:
        """A round of it is done."""

    def ended(self, entry: Mapping[str, Any]) -> None:
        """It has ended; entry: as study.json has it."""

    def described(self, values: Values) -> str:
        """A trial's values, on a line."""
        drawn = [(p, shown_value(values[p.key])) for p in self.parameters if p.key in values]
        return ", ".join(text if p.names else f"{p.short} {text}" for p, text in drawn)


def watching(parameters: Sequence[Parameter], trials: int) -> Watch:
    """A bar where somebody looks at stderr, else lines."""
    return Live(parameters, trials) if sys.stderr.isatty() else Lines(parameters, trials)


class Lines(Watch):
    """A line on stderr for each trial that ends."""

    def note(self, text: str) -> None:
        self.say(visible(text))

    def ended(self, entry: Mapping[str, Any]) -> None:
        self.say(visible(f"trial {entry['trial']}: {self.described(entry['values'])}: {outcome(entry)}"))

    def say(self, text: str) -> None:
        """Write a line."""
        print(text, file=sys.stderr, flush=True)


def outcome(entry: Mapping[str, Any]) -> str:
    """How a trial ended, on a line."""
    if entry["state"] == "failed":
        return f"failed: {entry['why']}"
    figures = ", ".join(f"{name} {value:.4g}" for name, value in list(entry["figures"].items())[:MOST])
    ended = f"ended early, after {entry['rounds']} rounds" if entry["state"] == "early" else ""
    return "; ".join(text for text in (figures, ended) if text)


class Live(Lines):
    """The lines, and below them a bar, and what the trials under way are at."""

    def __init__(self, parameters: Sequence[Parameter], trials: int) -> None:
        super().__init__(parameters, trials)
        self._working: dict[int, str] = {}
        self._bar = _Bar(self._working)
        self._task = self._bar.add_task("", total=trials)

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._working.clear()
        self._bar.stop()

    def began(self, trial: int, values: Values) -> None:
        self._working[trial] = f"trial {trial}: {self.described(values)}"

    def line(self, trial: int, line: Line) -> None:
        losses = [f"{name} {loss:.4g}" for name, loss in line.get("losses", {}).items() if loss is not None]
        if losses and trial in self._working:
            head = self._working[trial].partition("  round ")[0]
            self._working[trial] = f"{head}  round {line['round']}  {', '.join(losses[:MOST])}"

    def ended(self, entry: Mapping[str, Any]) -> None:
        self._working.pop(entry["trial"], None)
        super().ended(entry)
        self._bar.advance(self._task)

    def say(self, text: str) -> None:
        self._bar.console.print(Text(text), soft_wrap=True)


class _Bar(Progress):
    """The bar, and a line for each trial under way."""

    def __init__(self, working: Mapping[int, str]) -> None:
        self._working = working
        columns = TextColumn("trials"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn()
        super().__init__(*columns, console=Console(stderr=True, highlight=False))

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        for text in list(self._working.values()):
            yield Text(visible(text), no_wrap=True, overflow="ellipsis", style="dim")
