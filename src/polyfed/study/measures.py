"""The figures by which runs are compared: the last evaluation's, and what it takes to reach a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.report.directions import better_of

EVERY = ""  # in place of an objective: over all of them
MOST = 6  # figures in a table
LARGEST = 1e150  # a figure beyond has no spread: its square is infinite
COSTS = ("rounds", "bytes_up", "seconds")
Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """A figure of a run.

    Args:
        metric: 'loss', 'accuracy', ...
        better: 'higher' or 'lower'.
        objective: whose; '' for what `over` makes of all objectives that have the metric.
        over: 'mean' or 'worst'.
    """

    metric: str
    better: str
    objective: str = EVERY
    over: str = ""

    @property
    def key(self) -> str:
        """Its name in files: 'left.accuracy', 'worst.accuracy'."""
        return f"{self.objective or self.over}.{self.metric}"

    @property
    def title(self) -> str:
        """Its name in a table: 'left accuracy', 'accuracy, worst objective'."""
        metric = self.metric.replace("_", " ")
        if self.objective:
            return f"{self.objective} {metric}"
        return f"mean {metric}" if self.over == "mean" else f"worst {metric}"

    def of(self, objectives: Mapping[str, Mapping[str, Any]]) -> float | None:
        """The figure in a table of all objectives' metrics; None where it is not there, or no number up to LARGEST."""
        if self.objective:
            return _number(objectives.get(self.objective, {}).get(self.metric))
        values = [_number(row.get(self.metric)) for row in objectives.values() if self.metric in row]
        there = [value for value in values if value is not None]
        if len(there) < len(values) or not there:
            return None
        return sum(there) / len(there) if self.over == "mean" else self.worst(there)

    def worst(self, values: Iterable[float]) -> float:
        """The least good of some values."""
        return min(values) if self.better == "higher" else max(values)

    def best(self, values: Iterable[float]) -> float:
        """The best of some values."""
        return max(values) if self.better == "higher" else min(values)

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is as good as a target."""
        return value >= target if self.better == "higher" else value <= target

    def to_json(self) -> dict[str, str]:
        """As study.json has it."""
        about = {"objective": self.objective} if self.objective else {"over": self.over}
        return {"key": self.key, "title": self.title, "metric": self.metric, "better": self.better, **about}


def _number(value: Any) -> float | None:
    real = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST  # NaN is not
    return float(value) if real else None


def measures_of(summaries: Sequence[Summary]) -> list[Measure]:
    """Every figure that runs end with, of each objective; then means and worst ones, where there are several.

    Metrics that nobody knows the better direction of are left out.
    """
    found: dict[tuple[str, str], str] = {}
    for summary in summaries:
        for objective, row in summary["objectives"].items():
            for metric in row:
                if (objective, metric) not in found and (better := better_of(summary, objective, metric)):
                    found[objective, metric] = better
    objectives = list(dict.fromkeys(objective for objective, _ in found))
    metrics = dict.fromkeys(metric for _, metric in found)
    single = [Measure(m, found[o, m], o) for m in _order(metrics) for o in objectives if (o, m) in found]
    shared = [m for m in _order(metrics) if len({found.get((o, m)) for o in objectives} - {None}) == 1]
    shared = [m for m in shared if all((o, m) in found for o in objectives)] if len(objectives) > 1 else []
    overs = [over for over in ("mean", "worst") if over not in objectives]  # whose keys would be the same
    return single + [Measure(m, found[objectives[0], m], over=over) for m in shared for over in overs]


def _order(metrics: Iterable[str]) -> list[str]:
    """What people report first, the loss last."""
    return sorted(metrics, key=lambda metric: metric == "loss")


def shown_measures(measures: Sequence[Measure]) -> list[Measure]:
    """Those that a table has room for: all, each objective's first, or of many objectives the mean and the worst."""
    single = [one for one in measures if one.objective]
    over = [one for one in measures if not one.objective]
    first = list({one.objective: one for one in reversed(single)}.values())[::-1]
    return next((some for some in (single, first, over) if 0 < len(some) <= MOST), first[:MOST])


# what it takes to reach a target


@dataclass(frozen=True)
class Target:
    """A figure, and how good it should become.

    Args:
        measure: over several objectives, the worst: all of them should be as good.
        value: how good.
        given: whether a person asked for it.
    """

    measure: Measure
    value: float
    given: bool

    @property
    def sentence(self) -> str:
        """As a table says it."""
        sign = "is at least" if self.measure.better == "higher" else "is at most"
        whose = f"{self.measure.objective} " if self.measure.objective else ""
        every = "" if self.measure.objective else " for every objective"
        metric = self.measure.metric.replace("_", " ")
        why = "" if self.given else ", which every run reaches"
        return f"{whose}{metric} {sign} {self.value:.4g}{every}{why}"

    def to_json(self) -> dict[str, Any]:
        """As study.json has it."""
        return {"figure": self.measure.to_json(), "value": self.value, "given": self.given, "text": self.sentence}


def evaluations(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[dict[str, float], dict[str, dict[str, Any]]]]:
    """Each evaluated round of a run: what it has cost so far, and every objective's metrics."""
    spent = {"rounds": 0.0, "bytes_up": 0.0, "seconds": 0.0}
    for line in lines:
        spent = {
            "rounds": float(line["round"]),
            "bytes_up": spent["bytes_up"] + line["bytes_up"],
            "seconds": spent["seconds"] + line["seconds"],
        }
        if "losses" in line:
            losses, metrics = line["losses"], line.get("metrics", {})
            yield spent, {name: {**metrics.get(name, {}), "loss": loss} for name, loss in losses.items()}


def cost_of(target: Target, lines: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """The rounds, bytes and seconds after which a run has reached a target; None if it has not."""
    for spent, objectives in evaluations(lines):
        value = target.measure.of(objectives)
        if value is not None and target.measure.reaches(value, target.value):
            return spent
    return None


def read_target(text: str, measures: Sequence[Measure]) -> Target:
    """A target from 'accuracy=0.9', which every objective should reach, or 'left.loss=0.5'.

    Args:
        text: the text.
        measures: what there is.
    """
    name, equals, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not math.isfinite(value):
        raise BadInput(f"--target should be a metric and a number, as in accuracy=0.9. Found {shown(text)}.")
    by_name = {f"{one.objective}.{one.metric}": one for one in measures if one.objective}
    metrics = {one.metric: one.better for one in measures}
    if name.strip() in by_name:
        return Target(by_name[name.strip()], value, True)
    if name.strip() in metrics:
        return Target(Measure(name.strip(), metrics[name.strip()], over="worst"), value, True)
    raise BadInput(f"--target: no run has {shown(name)}.{nearest(name, [*metrics, *by_name])}")


def easiest_target(measures: Sequence[Measure], runs: Sequence[Sequence[Mapping[str, Any]]]) -> Target | None:
    """What the worst of the runs has reached at its best, for all objectives; None where there is no such figure.

    Args:
        measures: what there is; the first metric counts.
        runs: the lines of each run.
    """
    if not measures or not runs:
        return None
    have = [one for one in measures if one.metric == measures[0].metric and one.objective]
    measure = have[0] if len(have) == 1 else Measure(measures[0].metric, measures[0].better, over="worst")
    best: list[float] = []
    for lines in runs:
        values = [value for _, objectives in evaluations(lines) if (value := measure.of(objectives)) is not None]
        if not values:
            return None
        best.append(measure.best(values))
    return Target(measure, measure.worst(best), False)
