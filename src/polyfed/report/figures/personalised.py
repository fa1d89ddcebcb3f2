"""The server's model beside what clients make of it in a few steps of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfed.report.figure import Axis, Figure
from polyfed.report.figures.curves import Subject, curves
from polyfed.report.records import Record

GLOBAL, OWN = "global", "personalised"


def personalised(records: Sequence[Record]) -> list[Figure]:
    """A figure for the loss and for each metric: a panel an objective, the personalised model dashed."""
    some = [record for record in records if record.columns.keys("personalised")]
    if not some:
        return []
    split = some[0].columns.keys("personalised")[0]
    path = ("personalised", split)
    objectives = list(dict.fromkeys(n for r in some for n in r.columns.keys(*path, "losses")))
    every = dict.fromkeys(m for r in some for n in objectives for m in r.columns.keys(*path, "metrics", n))
    found = [_beside(some, objectives, split, metric) for metric in ("loss", *every)]
    return [figure for figure in found if figure is not None]


def _beside(records: Sequence[Record], objectives: Sequence[str], split: str, metric: str) -> Figure | None:
    """One figure; panels are objectives, and the two models have one colour."""
    inner = ("losses",) if metric == "loss" else ("metrics",)
    last = () if metric == "loss" else (metric,)
    outer = ("personalised", split)
    paths = {
        f"{objective}\n{word}": (*(outer if word == OWN else ()), *inner, objective, *last)
        for objective in objectives for word in (GLOBAL, OWN)
    }  # fmt: skip
    better = next((b for r in records for o in objectives if (b := r.better(o, metric))), "")
    said = metric.replace("_", " ")
    about = f"The {said} of the server's model, and of what it becomes after a few steps on each client's own rows."
    y = Axis(metric, f"{said} on {split} rows", better=better)
    subject = Subject(f"personalised-{metric}", f"Personalised and global: {said}", about, y)
    figure = curves(records, subject, list(paths), lambda columns, name: columns.curve(*paths[name]))
    return None if figure is None else _regrouped(figure, records, paths, objectives)


def _regrouped(
    figure: Figure, records: Sequence[Record], paths: dict[str, tuple[str, ...]], objectives: Sequence[str]
) -> Figure:
    """Panels of the figure, which are objectives and words, made panels of objectives."""
    series = []
    for one in figure.series:
        whole = one.name if one.name in paths else one.panel
        if whole not in paths:  # a summary over both models
            continue
        objective, word = whole.split("\n")
        run = "" if len(records) == 1 else f"{one.name}, "
        colour = (0 if word == GLOBAL else 1) if not run else one.colour
        dash = 0 if word == GLOBAL else 1
        marker = dash if not run else one.marker
        made = replace(one, name=f"{run}{word}", panel=objective, colour=colour, dash=dash, marker=marker)
        series.append(made)
    panels = tuple(o for o in objectives if any(one.panel == o for one in series))
    return replace(figure, series=tuple(series), panels=panels, shown=12, wide=len(panels) > 1)
