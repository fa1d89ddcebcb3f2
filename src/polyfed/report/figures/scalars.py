"""Single numbers of a round: what a method and the evaluation log besides the objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfed.report.columns import Columns, Curve
from polyfed.report.figure import Axis, Figure
from polyfed.report.figures.curves import Subject, curves
from polyfed.report.records import Record

STATIONARITY = {
    "stationarity": "|J w*|, min-norm weights",
    "own_stationarity": "|J w|, the method's weights",
    "client_stationarity": "shortest mix of client gradients",
}
OPTIMUM = {"distance": "distance |x - x*|", "delta_q": "Delta_Q"}
GRAM = {"gram_error": "as estimated", "gram_error_scaled": "at the best scale"}
SOLVED = 1e-12  # a gap that is nothing but rounding
DUALITY = {"primal": "primal", "dual": "dual"}
# in figures of their own, or counted along the horizontal axis
TAKEN = {
    "round", "seconds", "bytes_up", "bytes_down", "simulated_seconds", "evaluation_bytes", "gap", "improved",
    "losses", "metrics", "weights", "train", "clients", "splits", "personalised", "bounds", "progress",
    "not_computed", "rates", "passed_over", *STATIONARITY, *OPTIMUM, *DUALITY, *GRAM,
}  # fmt: skip


def improved(records: Sequence[Record]) -> Figure | None:
    """The share of a round's participants for which the new model is no worse."""
    y = Axis("improved", "share of participants improved", better="higher", low=0.0, high=1.0)
    about = "The share of each round's participants whose own loss did not get worse in the round."
    return scalar(records, Subject("improved", "Improved participants", about, y), "improved")


def gram_error(records: Sequence[Record]) -> Figure | None:
    """How far the compressed Gram matrix is from the exact one."""
    y = Axis("gram_error", "relative error of the Gram matrix", better="lower")
    about = "The error of the Gram matrix that the weights were found from, relative to the exact one."
    return _several(records, Subject("gram-error", "Gram error", about, y), GRAM)


def gap(records: Sequence[Record]) -> Figure | None:
    """How far a round's inner problem was from solved: of weights, or of the tasks' dual."""
    tasks = any(record.columns.curve("primal") for record in records)
    paths = [("gap",), *((("gap", name)) for record in records for name in record.columns.keys("gap"))]
    every = [curve for record in records for path in paths if (curve := record.columns.curve(*path)) is not None]
    if not any((abs(curve.values) > SOLVED).any() for curve in every):
        return None
    what = "primal minus dual" if tasks else "Frank-Wolfe gap of the weights"
    y = Axis("gap", what, better="lower")
    about = f"The gap of each round, {what}: 0 is solved."
    return scalar(records, Subject("gap", "Duality gap" if tasks else "Gap of the weights", about, y), "gap")


def duality(records: Sequence[Record]) -> Figure | None:
    """The primal and the dual value of task methods."""
    about = "The primal and the dual objective of the tasks, which meet at the optimum."
    subject = Subject("primal-dual", "Primal and dual", about, Axis("value", "objective value"))
    return _several(records, subject, DUALITY)


def stationarity(records: Sequence[Record]) -> Figure | None:
    """How far the model is from Pareto-stationary, in the ways that were asked for."""
    about = "Norms of combined gradients on all clients' data: 0 at a Pareto-stationary model."
    subject = Subject("stationarity", "Stationarity", about, Axis("norm", "norm", better="lower"))
    return _several(records, subject, STATIONARITY)


def optimum(records: Sequence[Record]) -> Figure | None:
    """The way to a known optimum."""
    about = "How far the model is from the known optimum, in the parameters and in the weighted losses."
    subject = Subject("optimum", "Way to the optimum", about, Axis("distance", "distance", better="lower"))
    return _several(records, subject, OPTIMUM)


def others(records: Sequence[Record]) -> Figure | None:
    """Every other number that rounds have: step sizes by a rule, and what methods of one's own log."""
    every = dict.fromkeys(path for record in records for path in record.columns.paths() if len(path) <= 2)
    names = {" ".join(path).replace("_", " "): path for path in every if path[0] not in TAKEN or path[0] == "rates"}
    moving = {name: path for name, path in names.items() if any(_moves(r.columns.curve(*path)) for r in records)}
    subject = Subject("others", "Other figures", "Further numbers that the method logs.", Axis("value", "value"))
    figure = curves(records, subject, list(moving), lambda columns, name: columns.curve(*moving[name]))
    return figure if figure is None or len(records) > 1 else _apart(figure)


def scalar(records: Sequence[Record], subject: Subject, key: str) -> Figure | None:
    """A figure of one number a round, or of one a model."""
    models = dict.fromkeys(name for record in records for name in record.columns.keys(key))
    paths = {subject.title: (key,)} | {name: (key, name) for name in models}
    return curves(records, subject, list(paths), lambda columns, name: columns.curve(*paths[name]))


def _several(records: Sequence[Record], subject: Subject, words: dict[str, str]) -> Figure | None:
    """Measures of one kind, each under its own name, and of several models each."""
    names: dict[str, tuple[str, ...]] = {}
    for key, word in words.items():
        models = list(dict.fromkeys(name for record in records for name in record.columns.keys(key)))
        names |= {f"{model}: {word}": (key, model) for model in models} if models else {word: (key,)}

    def pick(columns: Columns, name: str) -> Curve | None:
        return columns.curve(*names[name])

    there = [name for name, path in names.items() if any(record.columns.curve(*path) for record in records)]
    if len(there) == 1:
        subject = replace(subject, y=replace(subject.y, label=there[0]))
    return curves(records, subject, there, pick)


def _moves(curve: Curve | None) -> bool:
    """Whether a number changes: one that stands still is a setting."""
    return curve is not None and len(set(curve.values.tolist())) > 1


def _apart(figure: Figure) -> Figure:
    """A panel for each series, as they measure different things."""
    if len(figure.series) == 1:
        return replace(figure, title=figure.series[0].name, y=replace(figure.y, label=figure.series[0].name))
    apart = tuple(replace(one, panel=one.name, colour=0, dash=0) for one in figure.series)
    return replace(figure, series=apart, panels=tuple(one.name for one in apart), wide=True)
