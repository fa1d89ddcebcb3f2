"""By which number a round is better than another: one figure, a preference among losses, or the hypervolume."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from polyfed.algorithms.models.multimodel import qualified
from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.settings import NotNegative, real
from polyfed.metrics import hypervolume

if TYPE_CHECKING:
    from polyfed.core.problem import Objective
    from polyfed.run.plan import Plan

Finite = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(real)]
Preference = Mapping[str, NotNegative]
Reference = Mapping[str, Finite]
Combined = Literal["max", "sum"]
Split = Literal["", "train", "valid", "test"]


class Criterion:
    """Reads the number out of a round's line; the settings are those of EarlyStopping and BestModel."""

    def __init__(
        self,
        objective: str = "",
        metric: str = "loss",
        preference: Preference | None = None,
        combined: Combined = "max",
        reference: Reference | None = None,
        split: Split = "",
    ) -> None:
        ways = {"objective or metric": bool(objective) or metric != "loss", "preference": preference is not None}
        given = [name for name, is_given in {**ways, "reference": reference is not None}.items() if is_given]
        if len(given) > 1:
            raise BadInput(f"A round is judged by one thing. Found {' and '.join(given)}; leave one of them out.")
        self.objective, self.metric, self.combined, self.split = objective, metric, combined, split
        self.preference, self.reference = preference, reference
        self.higher = reference is not None

    def __str__(self) -> str:
        on = f" on {self.split} data" if self.split else ""
        if self.reference is not None:
            return f"the hypervolume{on}"
        if self.preference is not None:
            return f"the {'largest' if self.combined == 'max' else 'sum'} of r_k F_k{on}"
        whose = f"of {self.objective!r}" if self.objective else "of all objectives"
        return f"{self.metric} {whose}{on}"

    def key(self) -> str:
        """What tells this criterion from others."""
        return f"{self} {dict(self.preference or {})} {dict(self.reference or {})}"

    def check(self, plan: Plan) -> None:
        """Refuse objectives, metrics and splits that there are not; and look up which way a metric is better."""
        objectives = {qualified(m, o.name): o for m, part in plan.parts.items() for o in part.problem.objectives}
        for name in (*(self.preference or ()), *(self.reference or ()), *([self.objective] if self.objective else [])):
            if name not in objectives:
                known = nearest(name, objectives)
                raise BadInput(f"A callback names {shown(name)}, which is no objective here.{known}")
        if self.reference is not None and set(self.reference) != set(objectives):
            missing = next(name for name in objectives if name not in self.reference)
            raise BadInput(f"The reference point of a hypervolume needs every objective; {shown(missing)} is missing.")
        if self.preference is not None and not any(self.preference.values()):
            raise BadInput(f"A preference needs an objective above 0. Found {shown(dict(self.preference))}.")
        if self.split and self.split not in plan.evaluate.get("splits", ()):
            raise BadInput(
                f"A callback looks at {self.split!r} data, which is not measured: set evaluate.splits = "
                f"[{self.split!r}]."
            )
        if self.preference is None and self.reference is None:
            self.higher = self._better(objectives) == "higher"
        elif self.reference is not None:
            hypervolume([[0.0] * len(self.reference)], [1.0] * len(self.reference))  # whether it is installed

    def _better(self, objectives: Mapping[str, Objective]) -> str:
        """Which way the one figure is better."""
        some = [objectives[self.objective]] if self.objective else list(objectives.values())
        ways = {o.reported[self.metric].better for o in some if self.metric in o.reported}
        if not ways:
            known = sorted({name for o in some for name in o.reported})
            raise BadInput(f"A callback names the metric {shown(self.metric)}.{nearest(self.metric, known)}")
        if len(ways) > 1:
            raise BadInput(f"{shown(self.metric)} is better higher for one objective, lower for another; name one.")
        return ways.pop()

    def value(self, line: Mapping[str, Any]) -> float:
        """The number of a round's line; NaN where it is not there, or not finite."""
        found = line.get("splits", {}).get(self.split, {}) if self.split else line
        losses: Mapping[str, float | None] = found.get("losses", {})
        if self.reference is not None:
            return self._volume(losses)
        if self.preference is not None:
            terms = [r * _number(losses.get(name)) for name, r in self.preference.items()]
            return math.nan if any(map(math.isnan, terms)) else max(terms) if self.combined == "max" else sum(terms)
        names = [self.objective] if self.objective else list(losses)
        every = {name: _figure(found, name, self.metric) for name in names}
        figures = [value for value in every.values() if value is not None]
        return sum(figures) / len(figures) if figures else math.nan

    def _volume(self, losses: Mapping[str, float | None]) -> float:
        assert self.reference is not None
        point = [_number(losses.get(name)) for name in self.reference]
        return math.nan if any(map(math.isnan, point)) else hypervolume([point], list(self.reference.values()))

    def improved(self, value: float, best: float, least: float = 0.0) -> bool:
        """Whether a value is better than the best so far by more than `least`; the first that is a number is."""
        if math.isnan(value) or math.isnan(best):
            return math.isnan(best) and not math.isnan(value)
        return value > best + least if self.higher else value < best - least


def _figure(found: Mapping[str, Any], name: str, metric: str) -> float | None:
    """One figure of one objective; None where it does not have it, NaN where it is not a number."""
    if metric == "loss":
        return _number(found["losses"].get(name)) if name in found.get("losses", {}) else None
    row: Mapping[str, float | None] = found.get("metrics", {}).get(name, {})
    return _number(row[metric]) if metric in row else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
