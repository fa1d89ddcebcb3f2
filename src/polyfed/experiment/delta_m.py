"""Delta_M: what training all objectives at once costs, against training each alone (FedCMOO, Appendix E.3).

    Delta_M = 1/M sum_m (-1)^(l_m) (S_m - S_m alone) / S_m alone,  l_m = 1 where more of S is better

S_m is the experiment's figure for objective m, S_m alone that of a model trained on the same data for m only. Below 0,
training together is the better.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.algorithms import algorithms
from polyfed.core.errors import BadInput, nearest
from polyfed.core.settings import Settings, accepts
from polyfed.experiment.building import plan
from polyfed.metrics import Better, delta_m
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute
from polyfed.run.plan import Plan

OF_SEVERAL = ("name", "weights")  # settings of a method that make no sense for another, or for one objective


def measure(
    settings: Settings,
    *,
    alone: str = "fedavg",
    metric: str = "loss",
    seeds: int = 1,
    told: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train an experiment and each of its objectives alone; every figure, and Delta_M, one a seed.

    Args:
        settings: the experiment's keys, as in its file: {'rounds': 10, 'data': {'name': 'two-digits'}, ...}.
        alone: the method for one objective; it gets those of [algorithm]'s settings that it has, too.
        metric: 'loss', or a metric that every objective has.
        seeds: how many, from the experiment's on.
        told: is told how far it is.

    Returns:
        'objectives': by name 'values', 'alone' and which is 'better'; 'delta_m' with its 'mean' and 'std'; 'split', the
        rows that the figures are of.
    """
    if settings.get("models"):
        raise BadInput("Delta_M is about one model with several objectives. Found [models]; take them out.")
    first = int(settings.get("seed", 0))
    rows: dict[str, dict[str, Any]] = {}
    found: list[float] = []
    split = ""
    for seed in range(first, first + seeds):
        of_seed = {**settings, "seed": seed}
        made = _plan(of_seed)
        better = directions(made, metric)
        together, split = _trained(made, metric)
        told(f"seed {seed}: together, {_text(together)}")
        single: dict[str, float] = {}
        for name in better:
            single |= _trained(_plan(of_one(of_seed, alone), only=[name]), metric)[0]
            told(f"seed {seed}: alone, {_text({name: single[name]})}")
        found.append(delta_m(together, single, better))
        for name, way in better.items():
            row = rows.setdefault(name, {"better": way, "values": [], "alone": []})
            row["values"].append(together[name])
            row["alone"].append(single[name])
    about = {"metric": metric, "alone": alone, "seeds": seeds, "split": split}
    return {**about, "objectives": rows, "delta_m": found, "mean": float(np.mean(found)), "std": float(np.std(found))}


def of_one(settings: Settings, alone: str) -> Settings:
    """The experiment with another method, and those of its method's settings that this one has, too."""
    known = accepts(algorithms[alone]) - {*OF_SEVERAL}
    kept = {key: value for key, value in settings.get("algorithm", {}).items() if key in known}
    return {**settings, "algorithm": {"name": alone, **kept}}


def directions(made: Plan, metric: str) -> dict[str, Better]:
    """For every objective, whether more of a metric is better."""
    found: dict[str, Better] = {}
    for objective in made.parts[""].problem.objectives:
        if metric not in objective.reported:
            known = nearest(metric, objective.reported)
            raise BadInput(
                f"The metric should be one that every objective has; {objective.name!r} has no {metric!r}.{known}"
            )
        found[objective.name] = objective.reported[metric].better
    return found


def _plan(settings: Settings, only: list[str] | None = None) -> Plan:
    """A run that is evaluated at its end alone, and that nobody watches."""
    end = {**settings, "evaluate": {"every": 10**9}, "callbacks": []}
    return plan("delta-m", end, only=only)[0]


def _trained(made: Plan, metric: str) -> tuple[dict[str, float], str]:
    """Each objective's figure at the end of a run, in a directory that does not stay, and the rows it is of."""
    with tempfile.TemporaryDirectory() as folder:
        summary = execute(made, RunDirectory.create(Path(folder) / "run", "delta-m", {})).summary
    values = {name: row.get(metric) for name, row in summary["objectives"].items()}
    if bad := next((name for name in made.parts[""].problem.names if values.get(name) is None), None):
        raise BadInput(f"The {metric} of {bad!r} is not finite after {summary['rounds']} rounds; choose a smaller lr.")
    return values, str(summary["split"])


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The table as text, means over the seeds."""
    plural = "s" * (found["seeds"] != 1)
    yield f"{found['metric']} on {found['split']} data; alone by {found['alone']}; {found['seeds']} seed{plural}"
    width = max(9, *map(len, found["objectives"]))
    yield f"{'objective':{width}} {'together':>10} {'alone':>10}  better"
    for name, row in found["objectives"].items():
        yield f"{name:{width}} {np.mean(row['values']):10.4f} {np.mean(row['alone']):10.4f}  {row['better']}"
    yield f"Delta_M {100 * found['mean']:.2f} %" + (f" +- {100 * found['std']:.2f} %" if plural else "")
