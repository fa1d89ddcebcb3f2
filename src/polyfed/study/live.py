"""How far a comparison is, while it runs: a live table in a terminal, a line for each run elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from polyfed.core.errors import cut, visible
from polyfed.study.cells import Cell
from polyfed.study.runner import Line, Outcome
from polyfed.study.showing import number

MOST = 4  # figures in a line
BAR = 14  # characters of a bar
NARROW = 70  # characters of a terminal that has no room for figures
DEFAULT_ROUNDS = 100  # of an experiment that does not say


class Watch:
    """Is told how far a comparison is, and shows nothing.

    Args:
        cells: all its runs.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def line(self, cell: Cell, line: Line) -> None:
        """A round of a run is done."""

    def outcome(self, outcome: Outcome) -> None:
        """A run has ended, or was found finished."""


Nobody = Watch


def watching(cells: Sequence[Cell]) -> Watch:
    """A table where somebody looks at stderr, else lines."""
    return LiveTable(cells) if sys.stderr.isatty() else Lines(cells)


class Lines(Watch):
    """A line on stderr for each run that ends."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__(cells)
        self._ended = 0
        self._ran: set[str] = set()
        self._said: set[str] = set()  # why runs failed

    def line(self, cell: Cell, line: Line) -> None:
        self._ran.add(cell.name)

    def outcome(self, outcome: Outcome) -> None:
        self._ended += 1
        cell, summary = outcome.cell, outcome.summary
        if summary is None:
            what = "failed, too" if outcome.why in self._said else f"failed: {outcome.why}"
            self._said.add(outcome.why)
        else:
            took = f"{summary['seconds']:.1f} s" if cell.name in self._ran else "done before"
            what = f"{last_figures(summary['objectives'])} ({took})"
        print(visible(f"{self._ended}/{len(self.cells)} {cell.row}, seed {cell.seed}: {what}"), file=sys.stderr)


def last_figures(objectives: Mapping[str, Mapping[str, Any]]) -> str:
    """A few figures of an evaluation, on a line: of each objective the first that is not the loss, if there is one."""
    found = [(name, next((m for m in row if m != "loss"), "loss"), row) for name, row in objectives.items()]
    texts: dict[str, list[str]] = {}
    for name, metric, row in found[:MOST]:
        texts.setdefault(metric, []).append(f"{name} {number(metric, row.get(metric))}")
    more = f", and {len(found) - MOST} more" if len(found) > MOST else ""
    return "; ".join(f"{metric.replace('_', ' ')} {', '.join(some)}" for metric, some in texts.items()) + more


@dataclass
class _Row:
    """The runs of one row: rounds that are done, by run; what an evaluation found last; what rounds took."""

    total: int
    rounds: dict[str, int] = field(default_factory=dict)
    ended: int = 0
    failed: int = 0
    last: str = ""
    seconds: float = 0.0
    timed: int = 0  # rounds that the seconds are of


class LiveTable(Watch):
    """A row for each method: its runs, its rounds, its last figures, the time that is left."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__(cells)
        self._of = {cell.name: _rounds(cell) for cell in cells}
        self._rows: dict[str, _Row] = {}
        for cell in cells:
            self._rows.setdefault(cell.row, _Row(0)).total += self._of[cell.name]
        self._begun = time.monotonic()
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def line(self, cell: Cell, line: Line) -> None:
        row = self._rows[cell.row]
        row.rounds[cell.name] = int(line["round"])
        row.seconds, row.timed = row.seconds + line["seconds"], row.timed + 1
        if "losses" in line:
            metrics, losses = line.get("metrics", {}), line["losses"]
            row.last = last_figures({name: {**metrics.get(name, {}), "loss": loss} for name, loss in losses.items()})

    def outcome(self, outcome: Outcome) -> None:
        row = self._rows[outcome.cell.row]
        row.rounds[outcome.cell.name] = self._of[outcome.cell.name]
        row.ended += 1
        row.failed += outcome.summary is None
        if outcome.summary is not None:
            row.last = last_figures(outcome.summary["objectives"])

    def _table(self) -> Table:
        made = Table(caption=Text(f"{span(time.monotonic() - self._begun)} so far"), caption_justify="left")
        made.add_column("method")
        made.add_column("runs", justify="right", no_wrap=True)
        made.add_column("rounds", min_width=BAR, no_wrap=True)
        if wide := self._console.width >= NARROW:
            made.add_column("last figures")
        made.add_column("work left", justify="right", no_wrap=True)
        per_row = {name: sum(cell.row == name for cell in self.cells) for name in self._rows}
        for name, row in self._rows.items():
            runs = f"{row.ended}/{per_row[name]}" + (f", {row.failed} failed" if row.failed else "")
            bar = ProgressBar(total=row.total, completed=sum(row.rounds.values()), width=BAR)
            last = [_on_a_line(row.last)] if wide else []
            made.add_row(_on_a_line(cut(name, 40)), runs, bar, *last, self._left(row))
        return made

    def _left(self, row: _Row) -> str:
        """Seconds of work that a row has left, by its own rounds or, before there are any, by all."""
        timed = [row] if row.timed else [one for one in self._rows.values() if one.timed]
        rounds = sum(one.timed for one in timed)
        left = row.total - sum(row.rounds.values())
        if not rounds or left <= 0:
            return "" if left > 0 else "done"
        return span(left * sum(one.seconds for one in timed) / rounds)


def _on_a_line(text: str) -> Text:
    """A text that is cut where its column, which may shrink, has no room."""
    return Text(visible(text), no_wrap=True, overflow="ellipsis")


def span(seconds: float) -> str:
    """A time as people say it."""
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _rounds(cell: Cell) -> int:
    """How many rounds a run has, where its settings say so themselves."""
    rounds = cell.settings.get("rounds", DEFAULT_ROUNDS)
    return rounds if isinstance(rounds, int) else DEFAULT_ROUNDS
