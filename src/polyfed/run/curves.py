"""Small curves of losses in a terminal: one line of text an objective, as long as there is room."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from polyfed.core.errors import visible

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-:=+*#"  # where the terminal's encoding has no blocks
MOST_POINTS = 256  # that a curve keeps: a long run costs no more than a short one
MOST_LINES = 8  # objectives that are drawn; a small terminal has room for fewer
LONGEST_NAME, LONGEST_CURVE = 24, 48  # columns
ROOM_FOR_BEST = 64  # columns of a terminal from which on the best value is shown, too


class Curve:
    """One objective's losses so far, thinned: means of one, two, four, ... evaluations in a row."""

    def __init__(self) -> None:
        self.last, self.best, self.best_round = math.nan, math.inf, 0
        self._points: list[float] = []
        self._open: list[float] = []  # of the mean that is not complete
        self._stride = 1

    def add(self, round: int, value: float | None) -> None:
        """A round's loss; None where it was no number."""
        self.last = math.nan if value is None else value
        if self.last < self.best:
            self.best, self.best_round = self.last, round
        self._open.append(self.last)
        if len(self._open) == self._stride:
            self._points.append(_mean(self._open))
            self._open = []
        if len(self._points) == MOST_POINTS:
            self._points = [_mean(pair) for pair in list(pairwise(self._points))[::2]]
            self._stride *= 2

    def drawn(self, width: int, levels: str = BLOCKS) -> str:
        """The curve as at most `width` characters, the lowest loss as the first of the levels.

        Losses above 0 are drawn by their logarithms, so that one sees the last rounds move, too.

        Args:
            width: how many characters there is room for.
            levels: characters from low to high; a loss that is no number is a blank.
        """
        points = self._points + ([_mean(self._open)] if self._open else [])
        cells = min(len(points), width)
        ends = [i * len(points) // max(cells, 1) for i in range(cells + 1)]
        means = [_mean(points[start:end]) for start, end in pairwise(ends)]
        finite = [value for value in means if math.isfinite(value)]
        if min(finite, default=0.0) > 0:
            means, finite = ([math.log(value) for value in values] for values in (means, finite))
        low, high = min(finite, default=0.0), max(finite, default=0.0)
        return "".join(_level(value, low, high, levels) for value in means)


def _level(value: float, low: float, high: float, levels: str) -> str:
    if not math.isfinite(value):
        return " "
    if high <= low:
        return levels[len(levels) // 2]
    return levels[round((value - low) / (high - low) * (len(levels) - 1))]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


class Curves:
    """The curves of all objectives, as lines for a terminal."""

    def __init__(self) -> None:
        self.of: dict[str, Curve] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """The losses of a round's line, where it has some."""
        for name, loss in line.get("losses", {}).items():
            self.of.setdefault(name, Curve()).add(line["round"], loss)

    def lines(self, console: Console) -> list[Text]:
        """As many as there is room for, beside a bar of one line; the rest are counted.

        Args:
            console: whose width, height and encoding matter.
        """
        room = max(1, min(MOST_LINES, console.height - 4))
        some = list(self.of.items())[:room]
        names = [visible(name) for name, _ in some]
        longest = min(max(map(cell_len, names), default=0), LONGEST_NAME, console.width // 3)
        made = [self._line(name, longest, curve, console) for name, (_, curve) in zip(names, some, strict=True)]
        left = len(self.of) - len(some)
        return made + ([Text(f"and {left} more objectives", "dim", no_wrap=True)] if left else [])

    def _line(self, name: str, longest: int, curve: Curve, console: Console) -> Text:
        best = f"  best {curve.best:.4g} in round {curve.best_round}" if math.isfinite(curve.best) else ""
        best = best if console.width >= ROOM_FOR_BEST else ""
        last = f"{curve.last:<9.4g}" if math.isfinite(curve.last) else "-        "
        room = console.width - longest - len(last) - max(len(best), 26 if best else 0) - 3
        width = max(4, min(LONGEST_CURVE, room))
        drawn = curve.drawn(width, levels_of(console.encoding)).ljust(width)
        shown = (f"{_fitted(name, longest)} ", ""), (f"{drawn} ", "cyan"), (last, "bold"), (best, "dim")
        return Text.assemble(*shown, no_wrap=True, overflow="crop")


def levels_of(encoding: str) -> str:
    """The characters of curves that an encoding has."""
    try:
        BLOCKS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def _fitted(name: str, width: int) -> str:
    """A name in so many columns, cut where it is too long."""
    return set_cell_size(name, width) if cell_len(name) <= width else set_cell_size(name, max(width - 2, 0)) + ".."
