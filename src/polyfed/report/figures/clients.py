"""How a model serves its clients: the spread of their own figures over the rounds, and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyfed.report.cast import Role, cast, look
from polyfed.report.clocks import clock_axes, clocks
from polyfed.report.columns import as_number
from polyfed.report.figure import NONE, Axis, Figure, Numbers, Series
from polyfed.report.records import Record

DECILE = "worst decile"


@dataclass(frozen=True, eq=False)
class Spread:
    """One figure of one objective over the clients, at each evaluation.

    Args:
        rows: the place of each evaluation's round among the lines.
        middle: the median, or the mean where clients' own figures were not kept.
        low: a quartile, or a standard deviation below the mean.
        high: the other.
        worst: the mean of the worst tenth of the clients.
        last: every client's own at the last evaluation; empty where they were not kept.
        exact: whether it is made of every client's own figures.
    """

    rows: np.ndarray[tuple[int], np.dtype[np.intp]]
    middle: Numbers
    low: Numbers
    high: Numbers
    worst: Numbers
    last: Numbers
    exact: bool


def clients(records: Sequence[Record]) -> list[Figure]:
    """For the loss and for each metric, how its spread over clients moves, and how it is at the end."""
    roles = [role for role in cast(records) if _measured(role.record)]
    spreads = {i: spreads_of(role.record) for i, role in enumerate(roles)}
    metrics = dict.fromkeys(metric for some in spreads.values() for _, metric in some)
    found: list[Figure | None] = []
    for metric in metrics:
        mine = {(i, o): s for i, some in spreads.items() for (o, m), s in some.items() if m == metric}
        found += [_moving(roles, mine, metric), _final(roles, mine, metric)]
    return [figure for figure in found if figure is not None]


def spreads_of(record: Record) -> dict[tuple[str, str], Spread]:
    """By objective and metric; from every client's own figures where they were kept, else from the lines."""
    exact = _exact(record)
    return exact if exact else _told(record)


def _measured(record: Record) -> bool:
    return bool(record.columns.keys("clients")) or next(record.each_clients_line(), None) is not None


def _exact(record: Record) -> dict[tuple[str, str], Spread]:
    place = {round: i for i, round in enumerate(record.columns.rounds.tolist())}
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    last: dict[tuple[str, str], Numbers] = {}
    for line in record.each_clients_line():
        if line["round"] not in place:  # its line of metrics is not there yet
            continue
        for objective, row in line["clients"].items():
            for metric, values in row.items() if isinstance(row, dict) else ():
                own, key = _numbers(values), (str(objective), str(metric))
                if (own := own[np.isfinite(own)]).size:
                    worst = worst_decile(own, record.better(*key) == "higher")
                    found.setdefault(key, []).append((place[line["round"]], *np.percentile(own, (25, 50, 75)), worst))
                    last[key] = own
    tables = {key: np.array(rows) for key, rows in found.items()}
    return {
        key: Spread(t[:, 0].astype(np.intp), t[:, 2], t[:, 1], t[:, 3], t[:, 4], last[key], True)
        for key, t in tables.items()
    }


def _numbers(values: Any) -> Numbers:
    """Clients' figures as numbers, NaN for whatever is none."""
    every = values if isinstance(values, list) else []
    return np.array([as_number(value) for value in every], dtype=np.float64)


def worst_decile(values: Numbers, more_is_better: bool) -> float:
    """The mean of the worst tenth, at least of one: as `polyfed.metrics.spread` has it."""
    ranked = np.sort(values) if more_is_better else np.sort(values)[::-1]
    return float(ranked[: max(1, round(0.1 * len(ranked)))].mean())


def _told(record: Record) -> dict[tuple[str, str], Spread]:
    columns = record.columns
    found = {}
    for objective in columns.keys("clients"):
        for metric in columns.keys("clients", objective):
            one = {key: columns.curve("clients", objective, metric, key) for key in ("mean", "std", "worst_10")}
            mean, std, worst = one["mean"], one["std"], one["worst_10"]
            if mean is None or std is None or worst is None:
                continue
            low, high = mean.values - std.values, mean.values + std.values
            found[objective, metric] = Spread(mean.rows, mean.values, low, high, worst.values, NONE, False)
    return found


def _moving(roles: Sequence[Role], spreads: dict[tuple[int, str], Spread], metric: str) -> Figure | None:
    """The middle with its band, and the worst decile dashed, over the rounds."""
    objectives = tuple(dict.fromkeys(o for _, o in spreads))
    exact = all(one.exact for one in spreads.values())
    middle, band = ("median", "quartiles") if exact else ("mean", "one standard deviation")
    series = []
    for (i, objective), one in spreads.items():
        role, alone = roles[i], len(roles) == 1
        x = {key: values[one.rows] for key, values in clocks(role.record).items()}
        panel = objective if len(objectives) > 1 else ""
        names = (middle, DECILE) if alone else (role.name, f"{role.name}, {DECILE}")
        looks = (look(0), look(1)) if alone else (role.look, role.look)
        run = role.record.name
        middle_line = Series(names[0], one.middle, x, one.low, one.high, panel, run=run, **looks[0])
        series += [middle_line, replace(Series(names[1], one.worst, x, panel=panel, run=run, **looks[1]), dash=1)]
    said = metric.replace("_", " ")
    about = f"The {said} of clients on their own rows: the {middle}, {band} as a band, and the mean of the worst tenth."
    panels = objectives if len(objectives) > 1 else ()
    return Figure(
        f"clients-{metric}", f"Over the clients: {said}", about, "lines", _axis(roles, objectives, metric),
        clock_axes([role.record for role in roles]), tuple(series), panels=panels, wide=len(panels) > 1,
        notes=(f"Line: {middle}; band: {band}; dashed: mean of the worst tenth of the clients.",),
    )  # fmt: skip


def _final(roles: Sequence[Role], spreads: dict[tuple[int, str], Spread], metric: str) -> Figure | None:
    """Every client at the last evaluation, from the worst to the best."""
    some = {key: one for key, one in spreads.items() if len(one.last) > 1}
    objectives = tuple(dict.fromkeys(o for _, o in some))
    if not some:
        return None
    alone = len(roles) == 1
    axis = _axis(roles, objectives, metric)
    series = []
    for (i, objective), one in some.items():
        ranked = np.sort(one.last) if axis.better == "higher" else np.sort(one.last)[::-1]
        share = {"share": 100 * (np.arange(len(ranked)) + 0.5) / len(ranked)}
        called = objective if alone else roles[i].name
        place = objectives.index(objective) if alone else roles[i].place
        panel = objective if not alone and len(objectives) > 1 else ""
        series.append(Series(called, ranked, share, panel=panel, run=roles[i].record.name, **look(place)))
    said = metric.replace("_", " ")
    about = f"The {said} of every client at the last evaluation, from the worst client on the left to the best."
    panels = objectives if not alone and len(objectives) > 1 else ()
    x = {"share": Axis("share", "clients from the worst, %", low=0.0, high=100.0)}
    return Figure(
        f"clients-{metric}-last", f"Every client at the end: {said}", about, "lines", axis, x, tuple(series),
        panels=panels, notes=("The worst decile is what lies left of 10 %.",), wide=len(panels) > 1,
    )  # fmt: skip


def _axis(roles: Sequence[Role], objectives: Sequence[str], metric: str) -> Axis:
    better = next((b for r in roles for o in objectives if (b := r.record.better(o, metric))), "")
    return Axis(metric, f"{metric.replace('_', ' ')} on clients' own rows", better=better)
