"""The gain of training together (Bhuyan, Moharir, Joshi 2022, Section 5).

    g_P(M, eps) = M T_1(eps) / T_P(M, eps)                                  (3)

T_1 is the rounds that a model needs to reach eps when all clients train it alone; T_P(M) the rounds after which all M
models trained together under schedule P have reached it, the largest of their first hits. M T_1 becomes the sum of the
models' own T_1 where they differ. Without an eps it is, as in the paper's Section 7, what each model reaches alone
in the experiment's rounds, and T_1 is that number of rounds.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyfed.core.errors import BadInput, nearest
from polyfed.core.settings import Settings
from polyfed.experiment.building import plan
from polyfed.run.callbacks import Callback, RunView
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute
from polyfed.run.plan import Plan

PATIENCE = 2  # a run of M models ends after so many times M T_1 rounds: a gain below a half is no longer measured


@dataclass
class Watch(Callback):
    """Notes the first round in which each model has reached its target, and ends the run when all have."""

    metric: str
    targets: Mapping[str, float]  # by model
    hits: dict[str, int] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    split: str = ""  # the rows that the figures are of

    def on_evaluation(self, run: RunView, line: Mapping[str, Any]) -> None:
        rising = more_is_better(run.plan, self.metric)
        self.last = values(line, self.metric, rising)
        split = line.get("split", "")
        self.split = ", ".join(dict.fromkeys(split.values())) if isinstance(split, Mapping) else split
        for model, target in self.targets.items():
            value = self.last[model]
            if model not in self.hits and (value >= target if rising[model] else value <= target):
                self.hits[model] = int(line["round"])
        if len(self.hits) == len(self.targets) > 0:
            run.stop()


def more_is_better(plan: Plan, metric: str) -> dict[str, bool]:
    """Whether more of a metric is better, for each model; 'gap' is no metric of an objective, and less is better."""
    every = {model: [o.reported.get(metric) for o in part.problem.objectives] for model, part in plan.parts.items()}
    return {model: any(m is not None and m.better == "higher" for m in some) for model, some in every.items()}


def values(line: Mapping[str, Any], metric: str, rising: Mapping[str, bool]) -> dict[str, float]:
    """A metric of each model in a line of metrics, over its objectives the worst; 'gap' is log10 of the excess (10).

    rising: for each model, whether more is better.
    """
    found: dict[str, list[float]] = {}
    for name, row in line["metrics"].items():
        table = {**row, "loss": line["losses"][name]}
        if table.get("excess"):
            table["gap"] = math.log10(max(table["excess"], 1e-300))
        if table.get(metric) is None:
            raise BadInput(f"{name!r} has no finite metric {metric!r}.{nearest(metric, table)}")
        found.setdefault(name.partition("/")[0], []).append(table[metric])
    return {model: min(row) if rising[model] else max(row) for model, row in found.items()}


def measure(
    settings: Settings,
    models: Sequence[int],
    *,
    schedules: Sequence[str],
    metric: str = "accuracy",
    target: float | None = None,
    seeds: int = 1,
    told: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """T_1, T_M and the gain for each schedule and each number of models, one figure a seed; None: not reached.

    'split' says by model which rows the metric is of.
    """
    first = int(settings.get("seed", 0))
    splits: dict[str, str] = {}
    rows: list[dict[str, Any]] = [
        {"schedule": p, "M": M, "T_1": [], "T_M": [], "gain": []} for p in schedules for M in models
    ]
    for seed in range(first, first + seeds):
        of_seed = {**settings, "seed": seed}
        alone = {name: _alone(of_seed, name, metric, target) for name in bases(settings)}
        splits = {name: one.split for name, one in alone.items()}
        told(f"seed {seed}: T_1 = {', '.join(f'{one.rounds} ({name})' for name, one in alone.items())}")
        for row in rows:
            found = _together(of_seed, row["schedule"], row["M"], metric, alone)
            for key, value in zip(("T_1", "T_M", "gain"), found, strict=True):
                row[key].append(value)
            told(f"seed {seed}: {row['schedule']}, M = {row['M']}: T_M = {found[1]}, gain = {found[2]}")
    return {
        "metric": metric,
        "target": target,
        "seeds": seeds,
        "split": splits,
        "rows": [{**row, **_spread(row["gain"])} for row in rows],
    }


def bases(settings: Settings) -> dict[str, Settings]:
    """The experiment's models without their copies; without any, the one that it is about."""
    return {name: {**table, "copies": 1} for name, table in (settings.get("models") or {"model": {}}).items()}


def chosen(settings: Settings, M: int) -> dict[str, str]:
    """M models and which of the experiment's each is: the first M or, where there are fewer, copies in turn."""
    names = list(bases(settings))
    if len(names) >= M:
        return {name: name for name in names[:M]}
    return {f"{names[k % len(names)]}-{k // len(names) + 1}": names[k % len(names)] for k in range(M)}


class Alone(NamedTuple):
    """T_1 and eps of one model that has all clients to itself, and the rows that eps is of."""

    rounds: int
    value: float
    split: str


def _alone(settings: Settings, base: str, metric: str, target: float | None) -> Alone:
    rounds = int(settings.get("rounds", 100))
    watch = _watched(settings, {base: base}, "mfa-rr", rounds, Watch(metric, {} if target is None else {base: target}))
    if target is None:
        return Alone(rounds, watch.last[base], watch.split)
    if base not in watch.hits:
        raise BadInput(
            f"Alone, {base!r} does not reach {metric} {target:g} in {rounds} rounds but {watch.last[base]:.4g}; "
            "choose an easier --target, or set more rounds."
        )
    return Alone(watch.hits[base], target, watch.split)


def _together(
    settings: Settings, schedule: str, M: int, metric: str, alone: Mapping[str, Alone]
) -> tuple[int, int | None, float | None]:
    """The rounds that M models need one after another, those they need together, and the gain."""
    models = chosen(settings, M)
    total = sum(alone[base].rounds for base in models.values())
    if M == 1:
        return total, total, 1.0
    targets = {name: alone[base].value for name, base in models.items()}
    watch = _watched(settings, models, schedule, PATIENCE * total, Watch(metric, targets))
    needed = max(watch.hits.values()) if len(watch.hits) == M else None
    return total, needed, None if needed is None else total / needed


def _watched(settings: Settings, models: Mapping[str, str], schedule: str, rounds: int, watch: Watch) -> Watch:
    """A run of these models, in a directory that does not stay."""
    tables = {name: bases(settings)[base] for name, base in models.items()}
    some = {**settings, "rounds": rounds, "schedule": {"name": schedule}, "models": tables}
    made, _ = plan("gain", some, whole=set(models.values()) == set(bases(settings)))
    with tempfile.TemporaryDirectory() as folder:
        execute(replace(made, callbacks=(watch,)), RunDirectory.create(Path(folder) / "run", "gain", {}))
    return watch


def _spread(gains: Sequence[float | None]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds that got there, and how many did."""
    there = [g for g in gains if g is not None]
    if not there:
        return {"mean": None, "std": None, "reached": 0}
    return {"mean": float(np.mean(there)), "std": float(np.std(there)), "reached": len(there)}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The table as text."""
    eps = "what each model reaches alone" if found["target"] is None else f"{found['target']:g}"
    names = ", ".join(f"{split} ({model})" for model, split in found["split"].items())
    rows = names if len({*found["split"].values()}) > 1 else next(iter(found["split"].values()))
    yield f"{found['metric']} on {rows} data to {eps}; {found['seeds']} seed{'s' * (found['seeds'] != 1)}"
    yield f"{'schedule':10} {'M':>3} {'T_1 in all':>11} {'T_M':>9} {'gain':>7} {'+-':>6}"
    for row in found["rows"]:
        reached = [t for t in row["T_M"] if t is not None]
        if not reached:
            yield f"{row['schedule']:10} {row['M']:3} {np.mean(row['T_1']):11.1f} not reached in {PATIENCE} times that"
            continue
        part = "" if row["reached"] == found["seeds"] else f"  ({row['reached']} of {found['seeds']} seeds got there)"
        yield (
            f"{row['schedule']:10} {row['M']:3} {np.mean(row['T_1']):11.1f} {np.mean(reached):9.1f} "
            f"{row['mean']:7.2f} {row['std']:6.2f}{part}"
        )
