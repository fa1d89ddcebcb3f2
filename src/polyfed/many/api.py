"""`polyfed.train_many`: several models over one pool of clients, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyfed.algorithms.multimodel import MultiModel
from polyfed.api import same, without_none
from polyfed.client import Wrappers
from polyfed.engines import engines
from polyfed.experiment import Evaluate, Top, cohort_size
from polyfed.federation import Federation
from polyfed.fleet import Fleet
from polyfed.many.plan import ManyPlan, check_models, starter
from polyfed.many.problem import pool_size
from polyfed.run import Progress, Result, execute
from polyfed.rundir import RunDirectory
from polyfed.settings import arguments, check


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
    given = {"rounds": rounds, "seed": seed, "cohort": cohort}
    top: Top = check(lambda: Top(**given), given, "", given)  # type: ignore[arg-type]
    data = dict.fromkeys(algorithm.models, federations) if isinstance(federations, Federation) else dict(federations)
    size = cohort_size(top.cohort, pool_size(data))
    check_models(algorithm, data, size)
    table = {"name": engine} if isinstance(engine, str) else dict(engine)
    name = str(table.pop("name", "local"))
    values, _ = arguments(engines[name], table, "engine", ("problem", "federation", "wrappers"))
    start = starter(algorithm, data, partial(engines[name], **values), wrappers or Wrappers())
    asked = dict(evaluate or {})
    checked: Evaluate = check(lambda: Evaluate(**asked), asked, "evaluate", Evaluate.model_fields)
    first = next(iter(data.values()))
    plan = ManyPlan(
        "python", algorithm.name, name, algorithm.problem, first, algorithm, start, top.rounds, top.seed, size,
        checked.model_dump(), around or (lambda fleet: fleet), data,
    )  # fmt: skip
    settings = {"python": True, "rounds": rounds, "seed": seed, "cohort": cohort, "engine": {"name": name, **table}}
    settings |= {
        "schedule": {"name": algorithm.name},
        "models": {m: _method(a) for m, (_, a) in algorithm.models.items()},
    }
    path = None if out is None else Path(out)
    if resume and path is not None and (path / "experiment.toml").is_file():
        return execute(plan, same(RunDirectory.open(path), settings), progress)
    return execute(plan, RunDirectory.create(path, algorithm.name, settings), progress)


def _method(algorithm: Any) -> dict[str, Any]:
    described = without_none(asdict(algorithm)) if is_dataclass(algorithm) and not isinstance(algorithm, type) else {}
    return {"algorithm": {"name": type(algorithm).__name__, **described}}
