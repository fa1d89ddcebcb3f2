"""[models.NAME] and [schedule] of an experiment: from TOML to a plan for many models.

Each model has its own tables data, model and algorithm. What it leaves out is the experiment's; a table that names
something else than the experiment's inherits nothing, as another data set's keys would not fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from polyfed.algorithms import Algorithm, algorithms
from polyfed.algorithms.models.multimodel import MultiModel
from polyfed.algorithms.models.schedules import schedules
from polyfed.core.errors import BadInput, nearest
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem
from polyfed.core.settings import Settings, Table, check
from polyfed.data import Dataset
from polyfed.data.build import build_data
from polyfed.experiment.building import (
    NAMES,
    Evaluate,
    Top,
    build_around,
    build_attacks,
    build_engine,
    build_named,
    build_problem,
    cohort_size,
)
from polyfed.run.many_plan import ManyPlan, check_models, starter
from polyfed.run.models import pool_size

Parts = tuple[Problem, Federation, Algorithm]


class ModelTable(Table):
    """copies: as many models of this kind, NAME-1, NAME-2, ...; objectives: some of the data set's; seed: of the data
    and the initial weights, the experiment's if left out."""

    copies: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    objectives: list[str] | None = None
    data: Settings = Field(default_factory=dict)
    model: Settings = Field(default_factory=dict)
    algorithm: Settings = Field(default_factory=dict)


class ScheduleTable(Table):
    name: str = "mfa-rr"


def plan_many(name: str, top: Top) -> tuple[ManyPlan, Settings]:
    """Check and build all models; the settings come back with every default filled in, one table a model."""
    schedule: ScheduleTable = check(lambda: ScheduleTable(**top.schedule), top.schedule, "schedule", ["name"])
    schedules[schedule.name]
    evaluate: Evaluate = check(lambda: Evaluate(**top.evaluate), top.evaluate, "evaluate", Evaluate.model_fields)
    engine, engine_settings = build_engine(top.engine)
    parts, tables = _build(top)
    federations = {m: federation for m, (_, federation, _) in parts.items()}
    clients = pool_size(federations)
    wrappers, attacks = build_attacks(top.attacks, clients)
    around, around_settings = build_around(top, clients)
    algorithm = MultiModel({m: (problem, method) for m, (problem, _, method) in parts.items()}, schedule.name)
    cohort = cohort_size(top.cohort, clients)
    check_models(algorithm, federations, cohort)
    plan = ManyPlan(
        name, schedule.name, engine_settings["name"], algorithm.problem, next(iter(federations.values())), algorithm,
        starter(algorithm, federations, engine, wrappers), top.rounds, top.seed, cohort, evaluate.model_dump(), around,
        federations,
    )  # fmt: skip
    head = {"rounds": top.rounds, "seed": top.seed, "cohort": top.cohort, "attacks": attacks}
    rest = {"engine": engine_settings, **around_settings, "evaluate": evaluate.model_dump()}
    return plan, {**head, "schedule": schedule.model_dump(), **rest, "models": tables}


def _build(top: Top) -> tuple[dict[str, Parts], Settings]:
    """Every model's parts and resolved table; models on the same data share it."""
    parts: dict[str, Parts] = {}
    tables: Settings = {}
    loaded: dict[str, tuple[Dataset, Federation, Settings]] = {}
    for name, table in expanded(top.models).items():
        try:
            parts[name], tables[name] = _model(table, top, loaded)
        except BadInput as error:
            raise BadInput(f"Model {name!r}: {error}") from error
    return parts, tables


def expanded(models: Mapping[str, Any]) -> dict[str, ModelTable]:
    """One checked table a model, copies under names of their own."""
    found: dict[str, ModelTable] = {}
    for name, table in models.items():
        if not isinstance(table, dict):
            raise BadInput(f"models.{name} should be a table, [models.{name}]. Found {table!r}.")
        checked: ModelTable = check(lambda t=table: ModelTable(**t), table, f"models.{name}", ModelTable.model_fields)  # type: ignore[misc]
        names = [name] if checked.copies == 1 else [f"{name}-{k + 1}" for k in range(checked.copies)]
        if taken := next((n for n in names if n in found), None):
            raise BadInput(f"Two models are called {taken!r}; rename one of them.")
        found |= dict.fromkeys(names, checked)
    return found


def _model(
    table: ModelTable, top: Top, loaded: dict[str, tuple[Dataset, Federation, Settings]]
) -> tuple[Parts, Settings]:
    seed = top.seed if table.seed is None else table.seed
    data = {"name": NAMES["data"], **_inherited(table.data, top.data, "data")}
    key = json.dumps([seed, data], sort_keys=True, default=str)
    if key not in loaded:
        loaded[key] = build_data(data, seed)
    dataset, federation, data_settings = loaded[key]
    some = _chosen(dataset, table.objectives)
    problem, model_settings = build_problem(_inherited(table.model, top.model, "model"), some, seed)
    method, method_settings = build_named(
        algorithms, _inherited(table.algorithm, top.algorithm, "algorithm"), "algorithm"
    )
    own = {} if table.objectives is None else {"objectives": table.objectives}
    resolved = {"data": data_settings, "model": model_settings, "algorithm": method_settings}
    return (problem, federation, method), {"seed": seed, **own, **resolved}


def _inherited(own: Settings, top: Settings, kind: str) -> Settings:
    """The experiment's table with the model's changes, or the model's alone where it names something else."""
    general = top.get("name", NAMES[kind])
    return {**top, **own} if own.get("name", general) == general else own


def _chosen(dataset: Dataset, names: list[str] | None) -> Dataset:
    """The data set with some of its objectives only."""
    if names is None:
        return dataset
    known = {o.name: o for o in dataset.objectives}
    for name in names:
        if name not in known:
            raise BadInput(f"'objectives' names {name!r}, which the data set does not have.{nearest(name, known)}")
    return replace(dataset, objectives=tuple(known[name] for name in names))
