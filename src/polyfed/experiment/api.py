"""`polyfed.train`: for people with their own model and data."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from polyfed.algorithms import Algorithm, algorithms
from polyfed.core.client import Wrappers
from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation
from polyfed.core.fleet import Engine, Fleet
from polyfed.core.problem import Problem
from polyfed.core.settings import arguments, check
from polyfed.engines import engines
from polyfed.experiment.building import Evaluate, Top, cohort_size
from polyfed.run.directory import RunDirectory
from polyfed.run.evaluation import fits
from polyfed.run.loop import Plan, Progress, Result, execute


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
    a Fleet around the fleet (`polyfed.layers`). out: the run directory
    (default: a new one under runs/); with resume=True a run that stopped there goes on, given the same arguments.
    """
    asked = Asked.of(rounds, cohort, seed, engine, evaluate)
    if getattr(algorithm, "pooled", False):
        federation, asked.top.cohort = federation.pooled(), "all"
    called = next((key for key in algorithms if algorithms[key] is type(algorithm)), type(algorithm).__name__)
    fits(problem, federation, algorithm)
    plan = Plan(
        "python", called, asked.engine_name, problem, federation, algorithm,
        partial(asked.engine, problem, federation, wrappers or Wrappers()), asked.top.rounds, asked.top.seed,
        cohort_size(asked.top.cohort, len(federation)), asked.evaluate, around or (lambda fleet: fleet),
    )  # fmt: skip
    return asked.carry_out(plan, {"algorithm": described(algorithm, called)}, out, resume, progress)


@dataclass
class Asked:
    """What `train` and `train_many` are given besides models and data, checked."""

    top: Top
    engine_name: str
    engine_settings: dict[str, Any]
    engine: partial[Engine]
    evaluate: dict[str, Any]

    @classmethod
    def of(
        cls,
        rounds: int,
        cohort: int | float | str,
        seed: int,
        engine: str | Mapping[str, Any],
        evaluate: Mapping[str, Any] | None,
    ) -> Asked:
        given = {"rounds": rounds, "seed": seed, "cohort": cohort}
        numbers: Any = {name: v.item() if isinstance(v, np.generic) else v for name, v in given.items()}
        if not isinstance(engine, str | Mapping):
            raise BadInput(f"engine should be a name or a dict with a name and settings. Found {engine!r}.")
        table = {"name": engine} if isinstance(engine, str) else dict(engine)
        name = str(table.pop("name", "local"))
        values, _ = arguments(engines[name], table, "engine", ("problem", "federation", "wrappers"))
        wanted = dict(evaluate or {})
        checked: Evaluate = check(lambda: Evaluate(**wanted), wanted, "evaluate", Evaluate.model_fields)
        top = check(lambda: Top(**numbers), numbers, "", numbers)
        return cls(top, name, table, partial(engines[name], **values), checked.model_dump())

    def carry_out(
        self, plan: Plan, more: dict[str, Any], out: str | Path | None, resume: bool, progress: Progress | None
    ) -> Result:
        """Begin the run, or go on with it."""
        top, path = self.top, None if out is None else Path(out)
        settings: dict[str, Any] = {"python": True, "rounds": top.rounds, "seed": top.seed, "cohort": top.cohort}
        settings |= {"engine": {"name": self.engine_name, **self.engine_settings}, **more}
        if resume and path is not None and (path / "experiment.toml").is_file():
            return execute(plan, same(RunDirectory.open(path), settings), progress)
        return execute(plan, RunDirectory.create(path, plan.algorithm_name, settings), progress)


def described(algorithm: Any, called: str) -> dict[str, Any]:
    """An algorithm as a table, for the copy of the settings that a run keeps."""
    return {"name": called, **without_none(asdict(algorithm) if is_dataclass(algorithm) else {})}  # type: ignore[arg-type]


def same(directory: RunDirectory, settings: dict[str, Any]) -> RunDirectory:
    """A run goes on with the settings it was begun with; only more rounds may be asked for."""
    before, now = directory.settings(), tomllib.loads(tomli_w.dumps(settings))
    for key in {*before, *now} - {"rounds", "engine"}:
        if before.get(key) != now.get(key):
            raise BadInput(f"{directory.path} was begun with {key} = {before.get(key)}; found {now.get(key)}.")
    return directory


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}
