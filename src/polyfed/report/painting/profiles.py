"""Radar, parallel coordinates and the triangle of three shares."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np

from polyfed.report.figure import Figure
from polyfed.report.painting.curves import legend
from polyfed.report.painting.style import GREY, colour, dash, marker

WRAPPED = 18  # letters of a line of a long name


def radar(canvas: Any, figure: Figure, key: str) -> None:
    """A polygon a series, the first objective at the top, clockwise."""
    axes = canvas.subplots(subplot_kw={"projection": "polar"})
    angles = np.linspace(0, 2 * np.pi, len(figure.categories), endpoint=False)
    axes.set_theta_offset(np.pi / 2)
    axes.set_theta_direction(-1)
    around = np.append(angles, angles[0])
    for one in figure.series:
        y = np.append(one.y, one.y[0])
        axes.plot(around, y, color=colour(one), linestyle=dash(one), linewidth=1.2, marker=marker(one), markersize=3)
        axes.fill(around, y, color=colour(one), alpha=0.07)
    axes.set_ylim(0, 1)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"], color=GREY, fontsize=6)
    axes.set_xticks(angles, [""] * len(angles))
    for angle, name in zip(angles, figure.categories, strict=True):  # beside the circle, not upon it
        aside = np.sin(angle)
        side = "left" if aside > 0.1 else "right" if aside < -0.1 else "center"
        level = "center" if abs(aside) > 0.1 else "bottom" if np.cos(angle) > 0 else "top"
        axes.text(angle, 1.06, fill(name, WRAPPED), ha=side, va=level, fontsize=7)
    axes.spines["polar"].set_color("#cccccc")
    canvas.get_layout_engine().set(rect=(0.03, 0, 0.94, 1))  # which does not see that a circle leaves names less room
    legend(canvas, axes, figure, ("",))


def parallel(canvas: Any, figure: Figure, key: str) -> None:
    """A line a series over one upright axis a category, its worst value below and its best above."""
    axes = canvas.subplots()
    places = np.arange(len(figure.categories))
    for one in figure.series:
        style = {"color": colour(one), "linestyle": dash(one), "marker": marker(one)}
        axes.plot(places, one.y, linewidth=1.1, markersize=3, **style)
    crowded = sum(map(len, figure.categories)) > 60 or len(places) > 12
    plain = all((axis.low, axis.high) == (0.0, 1.0) for axis in figure.axes)
    for place, axis in zip(places, figure.axes, strict=True):
        axes.axvline(place, color="#cccccc", linewidth=0.6, zorder=0)
        for value, height, side in ((axis.low, -0.03, "top"), (axis.high, 1.03, "bottom")):
            if value is not None and len(places) <= 24 and not plain:
                axes.text(place, height, f"{value:.3g}", ha="center", va=side, fontsize=6, color=GREY,
                          rotation=90 if crowded else 0)  # fmt: skip
    axes.set_xticks(places, figure.categories, rotation=90 if crowded else 0)
    axes.tick_params(axis="x", length=0, pad=22 if crowded and len(places) <= 24 else 10)
    axes.set_yticks([0, 1], ["0", "1"] if plain else ["worst", "best"])
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_ylim(-0.04, 1.04)
    legend(canvas, axes, figure, ("",))


def ternary(canvas: Any, figure: Figure, key: str) -> None:
    """Three shares as a point in a triangle, its value as colour where there is one."""
    axes = canvas.subplots()
    corners = np.array([[0.5, np.sqrt(0.75)], [0.0, 0.0], [1.0, 0.0]])
    axes.fill(*corners.T, fill=False, edgecolor="#999999", linewidth=0.8)
    for share in (0.25, 0.5, 0.75):
        for k in range(3):
            ends = [share * corners[k] + (1 - share) * corners[(k + j) % 3] for j in (1, 2)]
            axes.plot(*np.array(ends).T, color="#e2e2e2", linewidth=0.5, zorder=0)
    every = np.concatenate([one.y for one in figure.series] or [np.zeros(0)])
    coloured = bool(np.isfinite(every).any()) and len(set(every[np.isfinite(every)])) > 1
    for one in figure.series:
        place = np.stack([one.x[name] for name in "abc"], 1) @ corners
        scale = {"c": one.y, "cmap": "cividis", "vmin": np.nanmin(every), "vmax": np.nanmax(every)} if coloured else {}
        shade: Any = scale or {"color": colour(one)}
        drawn = axes.scatter(*place.T, s=22, marker=marker(one), zorder=3, **shade)
    for corner, name, spot in zip(corners, figure.categories, ((0, 6), (-4, -8), (4, -8)), strict=False):
        axes.annotate(name, corner, spot, textcoords="offset points", ha="center", va="center")
    axes.set_aspect("equal")
    axes.axis("off")
    if coloured:
        canvas.colorbar(drawn, ax=axes, shrink=0.7, pad=0.04).set_label(figure.y.label)
    else:
        legend(canvas, axes, figure, ("",))
