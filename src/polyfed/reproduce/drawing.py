"""An item's figures from its record, as the paper draws them: neutral `Figure`s, which `polyfed.report` paints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from polyfed.report.cast import look
from polyfed.report.figure import NONE, Axis, Figure, Numbers, Series, numbers
from polyfed.reproduce.item import Draw, Grid, Item, Row
from polyfed.reproduce.record import Curve, Record

CLOCKS = {
    "round": "round", "bytes_up": "bytes sent by clients", "seconds": "seconds",
    "simulated_seconds": "simulated seconds",
}  # fmt: skip


HIDES = 1e4  # times the median of a panel, where its axis is linear: one such point hides all others


def figures_of(item: Item, record: Record) -> list[Figure]:
    """Every figure that the item asks for and the record has figures of."""
    made = []
    for i, draw in enumerate(item.draw):
        key = item.name + (f"-{i + 1}" if len(item.draw) > 1 else "")
        figure = KINDS[draw.kind](_Page(item, record, draw, key))
        made += [figure] if figure is not None else []
    return made


class _Page:
    """What is drawn: an item's record, one of its drawings, and what the figure is called."""

    def __init__(self, item: Item, record: Record, draw: Draw, key: str) -> None:
        self.item, self.record, self.draw, self.key = item, record, draw, key

    @property
    def grids(self) -> list[Grid]:
        """The grids that are drawn: those with figures."""
        run = {cell.grid for cell in self.record.cells}
        some = self.draw.grids or run
        return [grid for grid in self.item.grids if grid.name in run and grid.name in some]

    def figure(self, kind: Any, y: Axis, series: Sequence[Series], **more: Any) -> Figure | None:
        """The figure, or None where there is nothing to draw."""
        if not series:
            return None
        title = self.draw.title or f"{self.item.where}: {self.item.title}"
        about = f"{self.item.shows} Measured: {', '.join(dict.fromkeys(one.name for one in series))}."
        notes = ("Bands and whiskers are one standard deviation over seeds.",)
        return Figure(self.key, title, about, kind, y, series=tuple(series), notes=notes, **more)

    def mean(self, measure: str, grid: Grid, row: Row) -> tuple[float, float]:
        """Mean and standard deviation over seeds; NaN where there is none."""
        asked = self.item.measure(measure)
        found = [value for value in self.record.counted(asked, grid.name, row.label).values() if value is not None]
        if not found:
            return math.nan, 0.0
        return float(np.mean(found)), float(np.std(found, ddof=1)) if len(found) > 1 else 0.0

    def band(self, mean: Numbers, std: Numbers) -> tuple[Numbers, Numbers]:
        """One standard deviation to each side; on a logarithmic axis a tenth of the mean at least."""
        low = np.maximum(mean - std, mean / 10) if self.draw.log_y else mean - std
        return low, mean + std

    def place(self, row: str) -> int:
        """A row's colour: the same in every grid."""
        labels = list(dict.fromkeys(one.label for grid in self.grids for one in grid.rows))
        return labels.index(row)

    def of_grid(self, grid: Grid) -> str:
        """A grid's title, where there are several."""
        return (grid.title or grid.name) if len(self.grids) > 1 else ""

    def panel(self, *words: str) -> str:
        """What a small multiple is called."""
        return ", ".join(word for word in words if word)


def _curves(page: _Page) -> Figure | None:
    draw, series, panels = page.draw, [], []
    for grid in page.grids:
        for of in draw.of:
            name = page.panel(page.of_grid(grid), of.replace(".", " ") if len(draw.of) > 1 else "")
            mine = [
                c for c in page.record.curves
                if (c.grid, c.of, c.split, c.clock) == (grid.name, of, draw.split, draw.x)
            ]  # fmt: skip
            panels += [name] if mine else []
            most = math.inf if draw.log_y or not mine else HIDES * _middle(page, mine)
            series += [_curve(page, curve, name, most) for curve in mine]
    y = Axis("value", draw.y_title or draw.of[0].rpartition(".")[2].replace("_", " "), log=draw.log_y)
    unit = {"bytes_up": "bytes", "seconds": "seconds", "simulated_seconds": "seconds"}.get(draw.x, "")
    x = {draw.x: Axis(draw.x, draw.x_title or CLOCKS[draw.x], log=draw.log_x, unit=unit)}
    several = tuple(panels) if len(panels) > 1 else ()
    if not several:
        series = [one if not one.panel else Series(**{**vars(one), "panel": ""}) for one in series]
    return page.figure("lines", y, series, x=x, panels=several, wide=len(several) > 1)


def _middle(page: _Page, curves: Sequence[Curve]) -> float:
    """The median size of what is drawn; infinite where it says nothing."""
    drawn = np.abs(np.concatenate([numbers(curve.std if page.draw.spread else curve.mean) for curve in curves]))
    drawn = drawn[np.isfinite(drawn)]
    return (float(np.median(drawn)) if len(drawn) else 0.0) or math.inf


def _curve(page: _Page, curve: Curve, panel: str, most: float) -> Series:
    mean, std = numbers(curve.mean), numbers(curve.std)
    if page.draw.spread:
        mean, std = std, np.zeros_like(std)
    gone = (np.abs(mean) > most) | (std > most)  # what has diverged, in one of the runs at least, is a gap
    mean, std = (np.where(gone, np.nan, values) for values in (mean, std))
    band = page.band(mean, std) if np.nan_to_num(std).any() else (NONE, NONE)
    x = {curve.clock: numbers(curve.x)}
    return Series(curve.row, mean, x, low=band[0], high=band[1], panel=panel, **look(page.place(curve.row)))


def _lines(page: _Page) -> Figure | None:
    """A measure over the rows' own x, a line for each series."""
    draw, series, panels = page.draw, [], []
    for grid in page.grids:
        names = list(dict.fromkeys(row.series for row in grid.rows if row.x is not None))
        for measure in draw.measures:
            title = page.item.measure(measure).title if len(draw.measures) > 1 else ""
            panel = page.panel(page.of_grid(grid), title)
            made = [one for i, name in enumerate(names) if (one := _line(page, grid, measure, name, panel, i))]
            panels += [panel] if made else []
            series += made
    y = Axis("value", draw.y_title or page.item.measure(draw.measures[0]).title, log=draw.log_y)
    x = {"x": Axis("x", draw.x_title or "x", log=draw.log_x)}
    several = tuple(panels) if len(panels) > 1 else ()
    return page.figure("lines", y, series, x=x, panels=several, wide=len(several) > 1)


def _line(page: _Page, grid: Grid, measure: str, name: str, panel: str, place: int) -> Series | None:
    rows = [(row.x, *page.mean(measure, grid, row)) for row in grid.rows if row.x is not None and row.series == name]
    there = sorted(row for row in rows if np.isfinite(row[1]))
    if not there:
        return None
    x, y, std = (numbers([row[i] for row in there]) for i in range(3))
    band = page.band(y, std) if std.any() else (NONE, NONE)
    return Series(name or page.item.measure(measure).title, y, {"x": x}, low=band[0], high=band[1], panel=panel,
                  mode="both", **look(place))  # fmt: skip


def _bars(page: _Page) -> Figure | None:
    """Measures (and grids) along the axis, a bar or a dot for each row."""
    places = list(_places(page))
    labels = list(dict.fromkeys(row.label for grid in page.grids for row in grid.rows))
    series = []
    for label in labels:
        found = [_at(page, grid, measure, label) for grid, measure, _ in places]
        y, std = numbers([one[0] for one in found]), numbers([one[1] for one in found])
        if np.isfinite(y).any():
            low, high = page.band(y, std)
            series.append(Series(label, y, low=low, high=high, **look(page.place(label))))
    y_axis = Axis("value", page.draw.y_title or page.item.measure(page.draw.measures[0]).title, log=page.draw.log_y)
    categories = tuple(name for _, _, name in places)
    across = {"measure": Axis("measure", page.draw.x_title)}
    return page.figure(page.draw.kind, y_axis, series, x=across, categories=categories, wide=len(series) > 4)


def _places(page: _Page) -> Iterator[tuple[Grid, str, str]]:
    for grid in page.grids:
        for measure in page.draw.measures:
            alone = len(page.draw.measures) == 1 and page.of_grid(grid)  # the axis says what is measured
            title = "" if alone else page.item.measure(measure).title
            yield grid, measure, page.panel(title, page.of_grid(grid))


def _at(page: _Page, grid: Grid, measure: str, label: str) -> tuple[float, float]:
    row = next((row for row in grid.rows if row.label == label), None)
    return (math.nan, 0.0) if row is None else page.mean(measure, grid, row)


def _joined(row: Row) -> str:
    """The series that a row's point is joined with, or its own name; one with an x of its own is for 'lines'."""
    return row.series if row.series and row.x is None else row.label


def _scatter(page: _Page) -> Figure | None:
    """The second measure over the first, a point for each row; those of a series are joined."""
    first, second = (page.item.measure(name) for name in page.draw.measures[:2])
    names = list(dict.fromkeys(_joined(row) for grid in page.grids for row in grid.rows))
    series, panels = [], []
    labels = [row.label for grid in page.grids for row in grid.rows]
    apart = len({*labels}) < len(labels)  # rows of several grids can be told from each other by their names, or not
    for grid in page.grids:
        panel = page.of_grid(grid) if apart else ""
        for i, name in enumerate(names):
            rows = [row for row in grid.rows if _joined(row) == name]
            pairs = [(page.mean(first.name, grid, row)[0], page.mean(second.name, grid, row)[0]) for row in rows]
            there = sorted(pair for pair in pairs if np.isfinite(pair).all())
            if there:
                panels += [panel] if panel not in panels else []
                x, y = (numbers([pair[k] for pair in there]) for k in range(2))
                joined: Any = "both" if len(there) > 1 else "points"
                series.append(Series(name, y, {"x": x}, panel=panel, mode=joined, **look(i)))
    y_axis = Axis("value", page.draw.y_title or second.title, log=page.draw.log_y)
    across = {"x": Axis("x", page.draw.x_title or first.title, log=page.draw.log_x)}
    several = tuple(panels) if len(panels) > 1 else ()
    return page.figure("points", y_axis, series, x=across, panels=several, wide=len(several) > 1)


def _radar(page: _Page) -> Figure | None:
    """An axis for each measure from 0 to its highest, a polygon for each row of the first grid that has figures."""
    grid = next((one for one in page.grids if any(cell.grid == one.name for cell in page.record.cells)), None)
    if grid is None:
        return None
    table = np.array([[page.mean(m, grid, row)[0] for m in page.draw.measures] for row in grid.rows])
    kept = np.isfinite(table).all(1)
    if not kept.any():
        return None
    low, high = np.minimum(table[kept].min(0), 0.0), table[kept].max(0)
    span: Numbers = np.where(high > low, high - low, 1.0)
    titles = [page.item.measure(name).title for name in page.draw.measures]
    axes = tuple(Axis(t, t, low=float(a), high=float(a + s)) for t, a, s in zip(titles, low, span, strict=True))
    rows = [row for row, there in zip(grid.rows, kept, strict=True) if there]
    series = [
        Series(row.label, (values - low) / span, **look(page.place(row.label)))
        for row, values in zip(rows, table[kept], strict=True)
    ]
    y = Axis("value", page.draw.y_title or "share of the highest")
    return page.figure("radar", y, series, categories=tuple(titles), axes=axes)


KINDS: dict[str, Callable[[_Page], Figure | None]] = {
    "curves": _curves, "lines": _lines, "bars": _bars, "dots": _bars, "scatter": _scatter, "radar": _radar,
}  # fmt: skip
