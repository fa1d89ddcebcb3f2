"""`polyfed.train`: for people with their own model and data."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from polyfed.algorithms import Algorithm, algorithms
from polyfed.client import Wrappers
from polyfed.engines import engines
from polyfed.errors import BadInput
from polyfed.evaluation import fits
from polyfed.experiment import Evaluate, Top, cohort_size
from polyfed.federation import Federation
from polyfed.fleet import Fleet
from polyfed.problem import Problem
from polyfed.run import Plan, Progress, Result, execute
from polyfed.rundir import RunDirectory
from polyfed.settings import arguments, check


def train(
    problem: Problem,
    federation: Federation,
    algorithm: Algorithm,
    *,
    rounds: int = 100,
    cohort: int | float | str = "all",
    seed: int = 0,
    engine: str | dict[str, Any] = "local",
    evaluate: Mapping[str, Any] | None = None,
    wrappers: Wrappers | None = None,
    around: Callable[[Fleet], Fleet] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train a problem over a federation and return the model, the history and the run directory.

    cohort: clients a round, a number, a fraction below 1, or 'all'. engine: a name, or a dict with a name and its
    settings, {'name': 'local', 'workers': 2}. evaluate: the keys of [evaluate] in an experiment. around:
    a Fleet around the fleet (`polyfed.simulate`). out: the run directory
    (default: a new one under runs/); with resume=True a run that stopped there goes on, given the same arguments.
    """
    given: dict[str, Any] = {"rounds": rounds, "seed": seed, "cohort": cohort}
    numbers = {name: v.item() if isinstance(v, np.generic) else v for name, v in given.items()}
    top: Top = check(lambda: Top(**numbers), numbers, "", numbers)
    rounds, seed, cohort = top.rounds, top.seed, top.cohort
    if not isinstance(engine, str | Mapping):
        raise BadInput(f"engine should be a name or a dict with a name and settings. Found {engine!r}.")
    if getattr(algorithm, "pooled", False):
        federation, cohort = federation.pooled(), "all"
    table = {"name": engine} if isinstance(engine, str) else dict(engine)
    name = str(table.pop("name", "local"))
    values, _ = arguments(engines[name], table, "engine", ("problem", "federation", "wrappers"))
    start = partial(engines[name], problem, federation, wrappers or Wrappers(), **values)
    called = next((key for key in algorithms if algorithms[key] is type(algorithm)), type(algorithm).__name__)
    fits(problem, federation, algorithm)
    asked = dict(evaluate or {})
    checked: Evaluate = check(lambda: Evaluate(**asked), asked, "evaluate", Evaluate.model_fields)
    plan = Plan(
        "python", called, name, problem, federation, algorithm, start, rounds, seed,
        cohort_size(cohort, len(federation)), checked.model_dump(), around or (lambda fleet: fleet),
    )  # fmt: skip
    path = None if out is None else Path(out)
    settings = {"python": True, "rounds": rounds, "seed": seed, "cohort": cohort, "engine": {"name": name, **table}}
    described: dict[str, Any] = asdict(algorithm) if is_dataclass(algorithm) else {}
    settings["algorithm"] = {"name": called, **without_none(described)}
    if resume and path is not None and (path / "experiment.toml").is_file():
        return execute(plan, same(RunDirectory.open(path), settings), progress)
    return execute(plan, RunDirectory.create(path, called, settings), progress)


def same(directory: RunDirectory, settings: dict[str, Any]) -> RunDirectory:
    """A run goes on with the settings it was begun with; only more rounds may be asked for."""
    before, now = directory.settings(), tomllib.loads(tomli_w.dumps(settings))
    for key in {*before, *now} - {"rounds", "engine"}:
        if before.get(key) != now.get(key):
            raise BadInput(f"{directory.path} was begun with {key} = {before.get(key)}; found {now.get(key)}.")
    return directory


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}
