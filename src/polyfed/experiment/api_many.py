"""`polyfed.train_many`: several models over one pool of clients, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyfed.algorithms.models.multimodel import MultiModel
from polyfed.core.client import Wrappers
from polyfed.core.federation import Federation
from polyfed.core.fleet import Fleet
from polyfed.experiment.api import Asked, described
from polyfed.experiment.building import cohort_size
from polyfed.run.loop import Progress, Result
from polyfed.run.many_plan import ManyPlan, check_models, starter
from polyfed.run.models import pool_size


def train_many(
    algorithm: MultiModel,
    federations: Federation | Mapping[str, Federation],
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
    """Train all models of a `MultiModel`; federations has each one's data by its name, or one serves all of them.

    The rest is as in `polyfed.train`; cohort is all models' together. The result's model is an `nn.ModuleDict`.
    """
    asked = Asked.of(rounds, cohort, seed, engine, evaluate)
    data = dict.fromkeys(algorithm.models, federations) if isinstance(federations, Federation) else dict(federations)
    size = cohort_size(asked.top.cohort, pool_size(data))
    check_models(algorithm, data, size)
    first = next(iter(data.values()))
    plan = ManyPlan(
        "python", algorithm.name, asked.engine_name, algorithm.problem, first, algorithm,
        starter(algorithm, data, asked.engine, wrappers or Wrappers()), asked.top.rounds, asked.top.seed, size,
        asked.evaluate, around or (lambda fleet: fleet), data,
    )  # fmt: skip
    models = {m: {"algorithm": described(a, type(a).__name__)} for m, (_, a) in algorithm.models.items()}
    return asked.carry_out(plan, {"schedule": {"name": algorithm.name}, "models": models}, out, resume, progress)
