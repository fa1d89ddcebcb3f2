"""A figure as numbers and words: what the page, matplotlib and CSV files draw alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers: TypeAlias = NDArray[np.float64]
Kind = Literal["lines", "points", "bars", "dots", "heatmap", "radar", "parallel", "ternary"]
Mode = Literal["line", "points", "both"]
NONE: Numbers = np.zeros(0)

# Okabe and Ito's colours, told apart by the colour-blind too; the yellow is last, as it is faint on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
PALETTE_DARK = ("#56B4E9", "#E69F00", "#2DBF91", "#E8A0CC", "#D9703A", "#8FB8FF", "#F2F2F2", "#F0E442")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross", "star")


@dataclass(frozen=True)
class Axis:
    """What one axis measures.

    Args:
        key: its name in files: 'round', 'bytes_up', 'loss'.
        label: what is written beside it, with its unit.
        log: whether it is better read on a logarithmic scale; all values are above 0 then.
        better: 'lower' or 'higher' where that is known, else ''.
        low: where it begins, if that is fixed; of parallel coordinates, the value at its foot.
        high: where it ends, if that is fixed; of parallel coordinates, the value at its head.
        unit: 'bytes' or 'seconds' for numbers that are shown with a prefix or as minutes, else ''.
        words: what stands at 0, 1, 2, ... in place of numbers.
    """

    key: str
    label: str
    log: bool = False
    better: str = ""
    low: float | None = None
    high: float | None = None
    unit: str = ""
    words: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain values; what is not set is left out."""
        found = {"key": self.key, "label": self.label, "log": self.log, "better": self.better, "unit": self.unit}
        found |= {"low": self.low, "high": self.high, "words": list(self.words)}
        return {name: value for name, value in found.items() if value not in (None, "", False, [])}


@dataclass(frozen=True, eq=False)
class Series:
    """One line, cloud of points, set of bars or polygon of a figure.

    Args:
        name: what the legend calls it: a run, or an objective. Series of one name are one entry of the legend.
        y: its values; NaN where there is none. Of bars, dots, radar and parallel coordinates: one for each category.
        x: by the key of a horizontal axis, a value for each of `y`; of a ternary plot 'a', 'b' and 'c', shares of 1.
        low: the lower end of a band around `y`, or of an error bar; empty for none.
        high: the upper end.
        panel: the small multiple that it is in; '' where there is one.
        colour: its place in the palette: of a run, or of an objective.
        dash: its place among the dashes, and `marker` among the markers, so that colour is never alone.
        marker: its place among the markers.
        mode: whether its points are joined, drawn, or both.
        faint: whether it stands behind the others: one of several seeds, or what is dominated.
        labels: a text for each point, shown beside it or when it is pointed at; empty for none.
        ids: what each point stands for, the name of a run say; empty for none.
        run: the name of the run that it is of; '' where that is all of them.
    """

    name: str
    y: Numbers
    x: Mapping[str, Numbers] = field(default_factory=dict)
    low: Numbers = field(default_factory=lambda: NONE)
    high: Numbers = field(default_factory=lambda: NONE)
    panel: str = ""
    colour: int = 0
    dash: int = 0
    marker: int = 0
    mode: Mode = "line"
    faint: bool = False
    labels: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    run: str = ""

    def __post_init__(self) -> None:
        for name in ("y", "low", "high"):
            object.__setattr__(self, name, numbers(getattr(self, name)))
        object.__setattr__(self, "x", {key: numbers(values) for key, values in self.x.items()})
        object.__setattr__(self, "labels", tuple(self.labels))
        object.__setattr__(self, "ids", tuple(self.ids))

    def __len__(self) -> int:
        return len(self.y)

    def at(self, places: NDArray[np.intp]) -> Series:
        """The same series with some of its points only."""
        arrays = {name: a[places] if len(a := getattr(self, name)) else a for name in ("y", "low", "high")}
        texts = {name: tuple(t[i] for i in places) if (t := getattr(self, name)) else () for name in ("labels", "ids")}
        x = {key: values[places] for key, values in self.x.items()}
        return Series(**{**vars(self), **arrays, **texts, "x": x})


@dataclass(frozen=True, eq=False)
class Figure:
    """A neutral description of a figure; nothing in it belongs to a way of drawing it.

    Args:
        key: one word: the name of its files and its place on the page ('losses').
        title: a few words above it.
        about: one sentence of what one sees: the text for who does not see it.
        kind: 'lines', 'points', 'bars', 'dots' (as bars, each a marker with its whisker, so that the axis need not
            begin at 0), 'heatmap', 'radar', 'parallel' or 'ternary'.
        y: the vertical axis; of a heat map, what its colours measure.
        x: the horizontal axes to choose from, the first one first; keys are those of `Series.x`.
        series: what is drawn, in the order of the legend.
        categories: of bars, dots, radar and parallel coordinates: what each place along the axis is.
        axes: of parallel coordinates and radar: an axis for each category, whose `low` and `high` are the values at
            0 and at 1, as `Series.y` is then between 0 and 1.
        matrix: of a heat map, a row for each of `rows` and a column for each of `categories`.
        rows: of a heat map, the names of its rows.
        diverging: whether a heat map's colours are about 0, from both sides.
        panels: the small multiples in their order; empty for one.
        shown: how many of the panels are drawn at once; the others are a choice.
        notes: sentences to be read below it: how it is normalised, what is left out.
        wide: whether it needs the width of a page and not of a column.
        stacked: of bars, whether those of one category stand on each other and not side by side.
        panel_axes: the horizontal and the vertical axis of a panel, where panels differ in what they measure.
    """

    key: str
    title: str
    about: str
    kind: Kind
    y: Axis
    x: Mapping[str, Axis] = field(default_factory=dict)
    series: tuple[Series, ...] = ()
    categories: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    matrix: NDArray[np.float64] | None = None
    rows: tuple[str, ...] = ()
    diverging: bool = False
    panels: tuple[str, ...] = ()
    shown: int = 12
    notes: tuple[str, ...] = ()
    wide: bool = False
    stacked: bool = False
    panel_axes: Mapping[str, tuple[Axis, Axis]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "series", tuple(self.series))

    def in_panel(self, panel: str) -> list[Series]:
        """The series of one small multiple."""
        return [one for one in self.series if one.panel == panel]

    def to_json(self, digits: int = 0) -> dict[str, Any]:
        """As plain values, NaN as None. Columns that series share are there once, and series name their place.

        {'key', 'title', 'about', 'kind', 'y': axis, 'x': [axis, ...], 'columns': [[number, ...], ...],
        'series': [{'name', 'x': {axis key: place in columns}, 'y': [number, ...], 'low', 'high', 'panel', 'colour',
        'dash', 'marker', 'mode', 'faint', 'labels', 'ids', 'run'}], 'categories', 'axes', 'matrix', 'rows',
        'diverging', 'panels', 'shown', 'notes', 'wide', 'stacked', 'panel_axes': {panel: [x axis, y axis]}}; what is
        empty is left out of a series and of the figure.

        Args:
            digits: significant ones that numbers are rounded to, for a small page; 0 for all.
        """
        columns = _Columns(digits)
        series = [_series_json(one, columns, digits) for one in self.series]
        found: dict[str, Any] = {"key": self.key, "title": self.title, "about": self.about, "kind": self.kind}
        found |= {"y": self.y.to_json(), "x": [axis.to_json() for axis in self.x.values()]}
        found |= {"columns": columns.kept, "series": series}
        more: dict[str, Any] = {
            "categories": list(self.categories),
            "axes": [axis.to_json() for axis in self.axes],
            "matrix": [] if self.matrix is None else [plain(row, digits) for row in self.matrix],
            "rows": list(self.rows),
            "diverging": self.diverging,
            "panels": list(self.panels),
            "shown": self.shown,
            "notes": list(self.notes),
            "wide": self.wide,
            "stacked": self.stacked,
            "panel_axes": {panel: [x.to_json(), y.to_json()] for panel, (x, y) in self.panel_axes.items()},
        }
        return found | {name: value for name, value in more.items() if value not in ([], {}, False)}


class _Columns:
    """The horizontal places of a figure's series, each list kept once."""

    def __init__(self, digits: int) -> None:
        self.digits = digits
        self.kept: list[list[float | None]] = []
        self._places: dict[bytes, int] = {}

    def place(self, values: Numbers) -> int:
        key = values.tobytes()
        if key not in self._places:
            self._places[key] = len(self.kept)
            self.kept.append(plain(values, max(self.digits, 9) if self.digits else 0))  # bytes are large numbers
        return self._places[key]


def _series_json(one: Series, columns: _Columns, digits: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": one.name, "y": plain(one.y, digits), "colour": one.colour, "mode": one.mode}
    found |= {"x": {key: columns.place(values) for key, values in one.x.items()}}
    more: dict[str, Any] = {"panel": one.panel, "dash": one.dash, "marker": one.marker, "faint": one.faint}
    more |= {"low": plain(one.low, digits), "high": plain(one.high, digits)}
    more |= {"labels": list(one.labels), "ids": list(one.ids), "run": one.run}
    return found | {name: value for name, value in more.items() if value}


def numbers(values: ArrayLike | Sequence[float | None]) -> Numbers:
    """Values as an array; None is NaN."""
    return np.asarray(values, dtype=np.float64)


def plain(values: Numbers, digits: int = 0) -> list[float | None]:
    """An array as JSON has it: whole numbers without a point, None for what is not finite."""
    return [_plain(value, digits) for value in values.tolist()]


def _plain(value: float, digits: int) -> float | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}") if digits else value
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
