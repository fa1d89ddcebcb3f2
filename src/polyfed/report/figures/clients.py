"""How a model serves its clients: the spread of their own figures over the rounds, and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyfed.report.cast import Role, cast, look
from polyfed.report.clocks import clock_axes, places
from polyfed.report.columns import as_number
from polyfed.report.figure import NONE, Axis, Figure, Numbers, Series
from polyfed.report.figures.curves import scaled
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


@dataclass(frozen=True, eq=False)
class Shown:
    """What is drawn of one objective: of a run, or of a method in the mean over its seeds.

    Args:
        role: of the run, or of the first of them.
        objective: whose figure it is.
        x: where each evaluation stood, by horizontal axis.
        spread: over the clients.
        run: its name; '' for a mean.
    """

    role: Role
    objective: str
    x: dict[str, Numbers]
    spread: Spread
    run: str


def clients(records: Sequence[Record]) -> list[Figure]:
    """For the loss and for each metric, how its spread over clients moves, and how it is at the end."""
    roles = [role for role in cast(records) if _measured(role.record)]
    spreads = {i: spreads_of(role.record) for i, role in enumerate(roles)}
    metrics = dict.fromkeys(metric for some in spreads.values() for _, metric in some)
    found: list[Figure | None] = []
    for metric in metrics:
        mine = {(i, o): s for i, some in spreads.items() for (o, m), s in some.items() if m == metric}
        drawn = _drawn(roles, mine)
        found += [_moving(roles, drawn, metric), _final(roles, drawn, metric)]
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


def _drawn(roles: Sequence[Role], spreads: dict[tuple[int, str], Spread]) -> list[Shown]:
    """Seeds of one method as their mean, where they were evaluated in the same rounds; else each by itself."""
    groups: dict[tuple[str, str], list[Shown]] = {}
    for (i, objective), one in spreads.items():
        shown = Shown(roles[i], objective, places(roles[i].record, one.rows), one, roles[i].record.name)
        groups.setdefault((roles[i].name, objective), []).append(shown)
    return [one for seeds in groups.values() for one in ([_mean(seeds)] if _alike(seeds) else seeds)]


def _alike(seeds: Sequence[Shown]) -> bool:
    first = seeds[0].spread
    same = all(np.array_equal(one.spread.rows, first.rows) and len(one.spread.last) == len(first.last) for one in seeds)
    return len(seeds) > 1 and same


def _mean(seeds: Sequence[Shown]) -> Shown:
    """The mean of each figure over seeds; of the last evaluation, of clients of one rank."""
    every = [one.spread for one in seeds]
    names = ("middle", "low", "high", "worst")
    arrays = {name: np.mean([getattr(one, name) for one in every], axis=0) for name in names}
    last = np.mean([np.sort(one.last) for one in every], axis=0)
    keys = [key for key in seeds[0].x if all(key in one.x for one in seeds)]
    x = {key: np.mean([one.x[key] for one in seeds], axis=0) for key in keys}
    exact = all(one.exact for one in every)
    return Shown(seeds[0].role, seeds[0].objective, x, replace(every[0], **arrays, last=last, exact=exact), "")


def _moving(roles: Sequence[Role], drawn: Sequence[Shown], metric: str) -> Figure | None:
    """The middle with its band, and the worst decile dashed, over the rounds."""
    objectives = tuple(dict.fromkeys(one.objective for one in drawn))
    exact = all(one.spread.exact for one in drawn)
    middle, band = ("median", "quartiles") if exact else ("mean", "one standard deviation")
    alone = _alone(drawn)
    series = []
    for one in drawn:
        role, spread = one.role, one.spread
        panel = one.objective if len(objectives) > 1 else ""
        names = (middle, DECILE) if alone else (role.name, f"{role.name}, {DECILE}")
        looks = (look(0), look(1)) if alone else (role.look, role.look)
        middle_line = Series(names[0], spread.middle, one.x, spread.low, spread.high, panel, run=one.run, **looks[0])
        worst_line = Series(names[1], spread.worst, one.x, panel=panel, run=one.run, **looks[1])
        series += [middle_line, replace(worst_line, dash=1)]
    said = metric.replace("_", " ")
    y = scaled(_axis(roles, objectives, metric), [values for one in series for values in (one.y, one.low)])
    about = f"The {said} of clients on their own rows: the {middle}, {band} as a band, and the mean of the worst tenth."
    panels = objectives if len(objectives) > 1 else ()
    return Figure(
        f"clients-{metric}", f"Over the clients: {said}", about, "lines", y,
        clock_axes([role.record for role in roles]), tuple(series), panels=panels, wide=len(panels) > 1,
        notes=(f"Line: {middle}; band: {band}; dashed: mean of the worst tenth of the clients.{_seeds(drawn)}",),
    )  # fmt: skip


def _final(roles: Sequence[Role], drawn: Sequence[Shown], metric: str) -> Figure | None:
    """Every client at the last evaluation, from the worst to the best."""
    some = [one for one in drawn if len(one.spread.last) > 1]
    objectives = tuple(dict.fromkeys(one.objective for one in some))
    if not some:
        return None
    alone = _alone(drawn)
    axis = _axis(roles, objectives, metric)
    series = []
    for one in some:
        last = np.sort(one.spread.last)
        ranked = last if axis.better == "higher" else last[::-1]
        share = {"share": 100 * (np.arange(len(ranked)) + 0.5) / len(ranked)}
        called = one.objective if alone else one.role.name
        place = objectives.index(one.objective) if alone else one.role.place
        panel = one.objective if not alone and len(objectives) > 1 else ""
        series.append(Series(called, ranked, share, panel=panel, run=one.run, **look(place)))
    said = metric.replace("_", " ")
    about = f"The {said} of every client at the last evaluation, from the worst client on the left to the best."
    panels = objectives if not alone and len(objectives) > 1 else ()
    x = {"share": Axis("share", "clients from the worst, %", low=0.0, high=100.0)}
    return Figure(
        f"clients-{metric}-last", f"Every client at the end: {said}", about, "lines", axis, x, tuple(series),
        panels=panels, notes=(f"The worst decile is what lies left of 10 %.{_seeds(drawn)}",), wide=len(panels) > 1,
    )  # fmt: skip


def _alone(drawn: Sequence[Shown]) -> bool:
    """Whether there is one line for each objective: one run, or one method's mean."""
    return len(drawn) == len({one.objective for one in drawn})


def _seeds(drawn: Sequence[Shown]) -> str:
    return "" if all(one.run for one in drawn) else " Of several seeds, the mean."


def _axis(roles: Sequence[Role], objectives: Sequence[str], metric: str) -> Axis:
    better = next((b for r in roles for o in objectives if (b := r.record.better(o, metric))), "")
    return Axis(metric, f"{metric.replace('_', ' ')} on clients' own rows", better=better)
