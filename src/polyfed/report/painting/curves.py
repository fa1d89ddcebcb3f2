"""Lines and points: small multiples with one legend below, or names at the ends of a few lines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from polyfed.report.figure import Axis, Figure, Numbers, Series
from polyfed.report.painting.style import colour, dash, dress, marker

DIRECT = 4  # lines that are named where they end
MARKS = 7  # markers along a line


def paint(canvas: Any, figure: Figure, key: str) -> None:
    """Draw every panel that is shown.

    Args:
        canvas: matplotlib's figure.
        figure: what is drawn.
        key: of the horizontal axis; '' for the first.
    """
    panels = figure.panels[: figure.shown] or ("",)
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    same = not figure.panel_axes and _alike([np.concatenate([s.y for s in figure.in_panel(p)]) for p in panels])
    grid = canvas.subplots(rows, columns, squeeze=False, sharey=same)
    for i, axes in enumerate(grid.flat):
        if i < len(panels):
            _panel(axes, figure, panels[i], key, first=i % columns == 0 or not same)
            axes.tick_params(labelleft=True)
        else:
            axes.set_visible(False)
    names = list(dict.fromkeys(one.name for one in figure.series if one.panel in panels))
    if len(panels) == 1 and len(names) <= DIRECT and _ended(figure, panels[0]):
        canvas.draw_without_rendering()
        name_ends(grid[0, 0], figure.in_panel(panels[0]), key or _first(figure, panels[0]).key)
    elif len(names) > 1 or figure.kind == "points":
        legend(canvas, grid[0, 0], figure, panels)


def _panel(axes: Any, figure: Figure, panel: str, key: str, first: bool) -> None:
    x, y = figure.panel_axes.get(panel, (_first(figure, panel, key), figure.y))
    for one in figure.in_panel(panel):
        if x.key in one.x:
            draw(axes, one, one.x[x.key])
    dress(axes, x, y)
    if not first:
        axes.set_ylabel("")
    if panel:
        axes.set_title(panel, loc="left", color="#333333")


def _first(figure: Figure, panel: str, key: str = "") -> Axis:
    return figure.x[key] if key in figure.x else next(iter(figure.x.values()))


def draw(axes: Any, one: Series, x: Numbers) -> None:
    """One series: its band, its line, a few markers along it or all of its points."""
    points = one.mode != "line" or len(one) == 1
    style = {"color": colour(one), "linewidth": 0.6 if one.faint else 1.3, "alpha": 0.45 if one.faint else 1.0}
    if len(one.low) and len(one.high):
        axes.fill_between(x, one.low, one.high, color=colour(one), alpha=0.16, linewidth=0)
    if one.mode != "points" and len(one) > 1:
        axes.plot(x, one.y, linestyle=dash(one), **style, zorder=2 if one.faint else 3)
    if points:
        axes.plot(x, one.y, linestyle="none", marker=marker(one), markersize=3 if one.faint else 5,
                  color=style["color"], alpha=style["alpha"], markeredgecolor="white", markeredgewidth=0.4,
                  zorder=3 if one.faint else 4)  # fmt: skip
    elif not one.faint:
        step = max(1, len(one) // MARKS)
        places = slice((one.colour * step // 5) % step, None, step)
        axes.plot(x[places], one.y[places], linestyle="none", marker=marker(one), markersize=2.8,
                  color=style["color"], zorder=4)  # fmt: skip


def legend(canvas: Any, axes: Any, figure: Figure, panels: tuple[str, ...]) -> None:
    """One entry a name, below all panels, so that no data are covered."""
    entries: dict[str, Any] = {}
    if panels != ("",) and all(one.name == one.panel for one in figure.series if one.panel in panels):
        return  # the panels' titles have said it
    for one in figure.series:
        if one.panel in panels and one.name not in entries:
            line = "none" if one.mode == "points" else dash(one)
            mark = None if one.faint else marker(one)
            style = {"color": colour(one), **({"linewidth": 0.6, "alpha": 0.45} if one.faint else {})}
            entries[one.name] = axes.plot([], [], linestyle=line, marker=mark, markersize=3.2, **style)[0]
    if len(entries) < 2:
        return
    width = canvas.get_size_inches()[0]
    columns = legend_columns(list(entries), width)
    canvas.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, handlelength=2.6,
                  columnspacing=1.2, borderaxespad=0.2)  # fmt: skip


def legend_columns(names: list[str], width: float) -> int:
    """How many entries fit beside each other, so that all rows but the last are full."""
    most = max(1, int(width / (0.062 * max(map(len, names)) + 0.5)))
    rows = -(-len(names) // most)
    return -(-len(names) // rows)


def _ended(figure: Figure, panel: str) -> bool:
    """Whether each name is one line with an end to write at."""
    some = figure.in_panel(panel)
    lines = all(one.mode == "line" and np.isfinite(one.y).any() for one in some)
    return figure.kind == "lines" and lines and len({one.name for one in some}) == len(some) > 1


def name_ends(axes: Any, series: list[Series], key: str) -> None:
    """Write each line's name beside its end, pushed apart where ends are near."""
    if any(key not in one.x for one in series):
        return
    ends = [axes.transAxes.inverted().transform(axes.transData.transform(_end(one, key)))[1] for one in series]
    room = 10.5 / (72 * axes.get_position().height * axes.figure.get_size_inches()[1])
    for one, place in zip(series, apart(ends, room), strict=True):
        axes.text(1.02, place, one.name, transform=axes.transAxes, color=colour(one), va="center", fontsize=7)


def _end(one: Series, key: str) -> tuple[float, float]:
    last = int(np.flatnonzero(np.isfinite(one.y))[-1])
    return float(one.x[key][last]), float(one.y[last])


def apart(places: list[float], room: float) -> list[float]:
    """Heights moved as little as needed to be some room apart, in their order."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = dict(enumerate(places))
    for _ in range(50):
        for low, high in pairwise(order):
            short = room - (moved[high] - moved[low])
            if short > 0:
                moved[low] -= short / 2
                moved[high] += short / 2
    return [moved[i] for i in range(len(places))]


def _alike(panels: list[Numbers]) -> bool:
    """Whether one vertical scale does all panels justice."""
    spans = [float(np.ptp(some[np.isfinite(some)])) for some in panels if np.isfinite(some).any()]
    every = np.concatenate([some[np.isfinite(some)] for some in panels])
    return bool(spans) and float(np.ptp(every)) <= 3 * min(spans)
