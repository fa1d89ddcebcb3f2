"""Bars and dots by category."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np

from polyfed.report.figure import Figure, Series
from polyfed.report.painting.curves import legend, legend_columns
from polyfed.report.painting.style import colour, dress, marker

WRAPPED = 32  # letters of a line of a long name
FEW = 5  # categories that an axis has room for at least
LONG = 10  # letters from which on names stand beside and not below


def paint(canvas: Any, figure: Figure, key: str) -> None:
    """Draw bars, upright or lying where their names are long, or dots with whiskers."""
    axes = canvas.subplots()
    several = not figure.stacked and len(figure.series) > 1
    width = 0.8 / len(figure.series) if several else 0.7
    below = np.zeros(len(figure.categories))
    lying = figure.kind == "bars" and max(map(len, figure.categories), default=0) > LONG
    for i, one in enumerate(figure.series):
        places = np.arange(len(figure.categories)) + ((i - (len(figure.series) - 1) / 2) * width if several else 0)
        if figure.kind == "dots":
            _dots(axes, one, places)
        else:
            _bars(axes, one, places, 0.92 * width, below, lying)
            below = below + np.nan_to_num(one.y) if figure.stacked else below
    _named(axes, figure, lying)
    _legend(canvas, axes, figure)


def _bars(axes: Any, one: Series, places: Any, width: float, below: Any, lying: bool) -> None:
    draw = axes.barh if lying else axes.bar
    size, start = {"height" if lying else "width": width}, {"left" if lying else "bottom": below}
    draw(places, np.nan_to_num(one.y), **size, **start, color=colour(one), edgecolor="white", linewidth=0.4, zorder=3)
    if len(one.low) and len(one.high):
        spread = np.abs(np.stack([one.y - one.low, one.high - one.y]))
        axes.errorbar(*((one.y, places) if lying else (places, one.y)), **{"xerr" if lying else "yerr": spread},
                      linestyle="none", color="#333333", elinewidth=0.8, capsize=2, zorder=4)  # fmt: skip


def _dots(axes: Any, one: Series, places: Any) -> None:
    spread = np.abs(np.stack([one.y - one.low, one.high - one.y])) if len(one.low) else None
    axes.errorbar(places, one.y, yerr=spread, linestyle="none", color=colour(one), marker=marker(one), markersize=4.5,
                  elinewidth=1, capsize=2, zorder=4)  # fmt: skip


def _named(axes: Any, figure: Figure, lying: bool) -> None:
    places = range(len(figure.categories))
    across = next(iter(figure.x.values()), None)
    dress(axes, figure.y if lying else None, None if lying else figure.y)
    if figure.kind == "bars" and (figure.y.log or lying):
        (axes.set_xlim if lying else axes.set_ylim)(_ground(figure))
    if lying:
        axes.set_yticks(places, [fill(name, WRAPPED) for name in figure.categories])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        return
    crowded = sum(map(len, figure.categories)) > (45 if not figure.wide else 100)
    axes.set_xticks(places, figure.categories, rotation=45 if crowded else 0, ha="right" if crowded else "center")
    few = 0 if figure.kind == "dots" else FEW - len(figure.categories)
    aside = 0.6 + max(0, few) / 2  # a bar or two are no walls
    axes.set_xlim(-aside, len(figure.categories) - 1 + aside)
    axes.grid(axis="x", visible=False)
    if across is not None and (len(figure.categories) > 1 or figure.kind == "bars"):
        axes.set_xlabel(across.label)
    if figure.y.key == "failures":
        axes.yaxis.get_major_locator().set_params(integer=True)


def _ground(figure: Figure) -> float:
    """Where bars stand: at 0; on a logarithmic axis, which has none, at half of the least value, so that it is seen."""
    every = [value for one in figure.series for part in (one.y, one.low) for value in part if value > 0]
    return float(min(every)) / 2 if figure.y.log and every else 0.0


def _legend(canvas: Any, axes: Any, figure: Figure) -> None:
    if figure.kind == "dots":
        legend(canvas, axes, figure, ("",))
        return
    patches = [axes.bar([0], [0], color=colour(one))[0] for one in figure.series]
    if len(patches) > 1:
        names = [one.name for one in figure.series]
        columns = legend_columns(names, canvas.get_size_inches()[0])
        canvas.legend(patches, names, loc="outside lower center", ncols=columns, handlelength=1, borderaxespad=0.2)
