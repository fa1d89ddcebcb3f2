"""From settings to a plan: check and build everything. Bad input ends here, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyfed.algorithms import Algorithm, algorithms
from polyfed.algorithms.base import Outlook, announced
from polyfed.algorithms.models.multimodel import MultiModel
from polyfed.algorithms.models.schedules import schedules
from polyfed.core.code import hold_to_some_rule
from polyfed.core.engine import Engine
from polyfed.core.errors import BadInput, cut, nearest, shown
from polyfed.core.federation import Federation
from polyfed.core.layer import Layer, Layers
from polyfed.core.part import Part
from polyfed.core.problem import Problem
from polyfed.core.room import check_room
from polyfed.core.settings import Settings, arguments, build, check
from polyfed.data import Dataset
from polyfed.data.build import build_data
from polyfed.engines import engines
from polyfed.experiment.objectives import Losses, check_names, read_losses, with_losses
from polyfed.experiment.schema import NAMES, Evaluate, Model, ModelTable, ScheduleTable, Top
from polyfed.experiment.starting import begin_with, model_file, without_lost_weights
from polyfed.layers import layers as layer_registry
from polyfed.models import models
from polyfed.rates import rounds_by
from polyfed.run.callbacks import Callback, callbacks
from polyfed.run.optimum import KNOWN, optima
from polyfed.run.personalised import fine_tuning
from polyfed.run.plan import Plan, check_parts, check_splits, one_part, pool_size

Loaded = dict[str, tuple[Dataset, Federation, Settings]]
Load = Callable[[Settings, int], tuple[Dataset, Federation, Settings]]  # from [data] and a seed


def plan(
    name: str, settings: Settings, *, whole: bool = True, only: list[str] | None = None, load: Load = build_data
) -> tuple[Plan, Settings]:
    """Check and build everything; the settings come back with every default filled in.

    whole: false where only some of an experiment's models are trained: [objectives] may then name others' objectives.
    only: the objectives that the one model is trained for, where not for all of the data set's.
    load: makes the data; one that remembers them serves many runs.
    """
    hold_to_some_rule()  # settings are data: what they name is imported from where it is allowed only
    top: Top = check(lambda: Top(**settings), settings, "", Top.model_fields)
    evaluate: Evaluate = check(lambda: Evaluate(**top.evaluate), top.evaluate, "evaluate", Evaluate.model_fields)
    if isinstance(evaluate.optimum, str) and evaluate.optimum != KNOWN:
        evaluate.optimum = str(Path(evaluate.optimum).resolve())  # for those who resume it elsewhere
    engine, engine_table = build_engine(top.engine)
    losses = read_losses(top.objectives)
    build_parts = _several if top.models else partial(_one, only=only)
    parts, schedule, tables = build_parts(top, losses, load)
    _refuse_data_of_nodes(tables, engine_table)
    if whole and only is None:
        check_names(losses, {o for part in parts.values() for o in part.problem.names})
    layers, layer_tables = build_layers(top)
    told, told_tables = _build_list(callbacks, top.callbacks, "callbacks", Callback)
    made = assemble(
        name, parts, schedule, rounds=top.rounds, seed=top.seed, cohort=top.cohort, always=top.cohort_always,
        never=top.cohort_never, evaluate=evaluate.model_dump(), engine=engine, engine_name=engine_table["name"],
        layers=layers, callbacks=tuple(told), check_rows=top.check_rows,
    )  # fmt: skip
    head = {"rounds": made.rounds, "seed": top.seed, "cohort": top.cohort, **drawn_keys(top)}
    tables |= {"objectives": top.objectives} if top.objectives else {}
    lists = {"callbacks": told_tables} if told_tables else {}
    return made, {
        **head, **layer_tables, **lists, "engine": engine_table, "evaluate": evaluate.model_dump(exclude_none=True),
        **tables,
    }  # fmt: skip


def rebuild(settings: Settings) -> dict[str, Part]:
    """The models, data and methods of a run, from its experiment; who did the work and who watched does not matter."""
    hold_to_some_rule()
    top: Top = check(lambda: Top(**settings), settings, "", Top.model_fields)
    losses = read_losses(top.objectives)
    top.model = without_lost_weights(top.model)
    for table in top.models.values():
        table["model"] = without_lost_weights(table.get("model", {}))
    return (_several(top, losses, build_data) if top.models else _one(top, losses, build_data))[0]


def _refuse_data_of_nodes(tables: Settings, engine: Settings) -> None:
    """Data that only the clients have is no data elsewhere: the rows that stand in for it here are blank."""
    names = [table["data"]["name"] for table in tables.get("models", {"": tables}).values()]
    if "nodes" in names and engine.get("address") != "superlink":
        raise BadInput(
            "data.name = 'nodes' says that only the clients have the data: make an app with 'polyfed flower init DIR "
            "--experiment FILE' and start it with 'flwr run DIR', or name a data set that is here."
        )


def assemble(
    name: str,
    parts: Mapping[str, Part],
    schedule: MultiModel | None,
    *,
    rounds: int | Settings,
    seed: int,
    cohort: int | float | str,
    always: Sequence[int],
    never: Sequence[int],
    evaluate: Mapping[str, Any],
    engine: partial[Engine],
    engine_name: str,
    layers: Layers,
    callbacks: tuple[Callback, ...],
    check_rows: bool,
) -> Plan:
    """The plan of checked parts: for experiments, `train` and `train_many` alike."""
    size = cohort_size(cohort, pool_size(parts), always, never)
    notes = check_parts(parts, layers, size, schedule, rows=check_rows)
    check_splits(parts, evaluate.get("splits", ()))
    if evaluate.get("personalise") is not None:
        evaluate = {**evaluate, "personalise": fine_tuning(evaluate["personalise"], parts)}
    if evaluate.get("optimum") is not None:
        evaluate = {**evaluate, "optimum": optima(evaluate["optimum"], parts)}
    method = parts[""].algorithm if schedule is None else None
    if not isinstance(rounds, int):
        rounds, note = rounds_by(rounds, sum(int(part.federation.examples.sum()) for part in parts.values()))
        notes.append(note)
    notes += [note for m, part in parts.items() for note in _announced(m, part, rounds, len(parts))]
    made = Plan(
        name=name, title=schedule.name if schedule is not None else "" if method is None else method.title,
        engine_name=engine_name, parts=parts, engine=engine, rounds=rounds, seed=seed, cohort=size, evaluate=evaluate,
        layers=layers, callbacks=callbacks, schedule=schedule, always=tuple(sorted({*always})),
        never=tuple(sorted({*never})), notes=tuple(notes),
    )  # fmt: skip
    for callback in callbacks:
        callback.check(made)
    return made


def _announced(model: str, part: Part, rounds: int, models: int) -> list[str]:
    """What the rules of a part's method say; one that its theorem does not cover is refused here."""
    if part.algorithm is None:
        return []
    ahead = Outlook(rounds, models, part.problem.names, part.federation.examples)
    return [f"{model}: {note}" if model else note for note in announced(part.algorithm, ahead)]


def _one(top: Top, losses: Losses, load: Load, only: list[str] | None = None) -> tuple[dict[str, Part], None, Settings]:
    """One model: [data], [model], [algorithm]."""
    if top.schedule:
        raise BadInput("[schedule] shares the clients out among models: give them as [models.NAME]. Found none.")
    algorithm, algorithm_table = build_algorithm(top.algorithm)
    dataset, federation, data_table = load({"name": NAMES["data"], **top.data}, top.seed)
    if algorithm.pooled:
        federation, top.cohort = federation.pooled(), "all"
    dataset, federation = _chosen(dataset, federation, only)
    problem, model_table = build_problem(top.model, with_losses(dataset, losses), top.seed)
    tables = {"data": data_table, "model": model_table, "algorithm": algorithm_table}
    return one_part(problem, federation, algorithm), None, tables


# several models: each has its own tables; what it leaves out is the experiment's, unless it names something else


def _several(top: Top, losses: Losses, load: Load) -> tuple[dict[str, Part], MultiModel, Settings]:
    """Every model's part and resolved table; models on the same data share it."""
    schedule: ScheduleTable = check(lambda: ScheduleTable(**top.schedule), top.schedule, "schedule", ["name"])
    _ = schedules[schedule.name]
    parts: dict[str, Part] = {}
    tables: Settings = {}
    loaded: Loaded = {}
    for name, table in expanded(top.models).items():
        try:
            parts[name], tables[name] = _model(table, top, losses, loaded, load)
        except BadInput as error:
            raise BadInput(f"Model {name!r}: {error}") from error
    methods = {m: (part.problem, part.algorithm) for m, part in parts.items() if part.algorithm is not None}
    return parts, MultiModel(methods, schedule.name), {"schedule": schedule.model_dump(), "models": tables}


def expanded(models: Mapping[str, Any]) -> dict[str, ModelTable]:
    """One checked table a model, copies under names of their own."""
    found: dict[str, ModelTable] = {}
    for name, table in models.items():
        if not isinstance(table, dict):
            raise BadInput(f"models.{name} should be a table, [models.{name}]. Found {shown(table)}.")
        checked: ModelTable = check(partial(ModelTable, **table), table, f"models.{name}", ModelTable.model_fields)
        names = [name] if checked.copies == 1 else [f"{name}-{k + 1}" for k in range(checked.copies)]
        if taken := next((n for n in names if n in found), None):
            raise BadInput(f"Two models are called {taken!r}; rename one of them.")
        found |= dict.fromkeys(names, checked)
    return found


def _model(table: ModelTable, top: Top, losses: Losses, loaded: Loaded, load: Load) -> tuple[Part, Settings]:
    seed = top.seed if table.seed is None else table.seed
    data = {"name": NAMES["data"], **_inherited(table.data, top.data, "data")}
    key = json.dumps([seed, data], sort_keys=True, default=str)
    if key not in loaded:
        loaded[key] = load(data, seed)
    dataset, federation, data_table = loaded[key]
    dataset, federation = _chosen(dataset, federation, table.objectives)
    some = with_losses(dataset, losses)
    problem, model_table = build_problem(_inherited(table.model, top.model, "model"), some, seed)
    algorithm, algorithm_table = build_algorithm(_inherited(table.algorithm, top.algorithm, "algorithm"))
    own = {} if table.objectives is None else {"objectives": table.objectives}
    resolved = {"data": data_table, "model": model_table, "algorithm": algorithm_table}
    return Part(problem, federation, algorithm), {"seed": seed, **own, **resolved}


def _inherited(own: Settings, top: Settings, kind: str) -> Settings:
    """The experiment's table with the model's changes, or the model's alone where it names something else."""
    general = top.get("name", NAMES[kind])
    return {**top, **own} if own.get("name", general) == general else own


def _chosen(dataset: Dataset, federation: Federation, names: list[str] | None) -> tuple[Dataset, Federation]:
    """The data set with some of its objectives only, and what is said of who holds them."""
    if names is None:
        return dataset, federation
    known = {o.name: o for o in dataset.objectives}
    for name in names:
        if name not in known:
            raise BadInput(f"'objectives' names {shown(name)}, which the data set does not have.{nearest(name, known)}")
    holds = {name: column for name, column in federation.holds.items() if name in names}
    return replace(dataset, objectives=tuple(known[name] for name in names)), replace(federation, holds=holds)


# layers and callbacks


def build_layers(top: Top) -> tuple[Layers, Settings]:
    """[[attacks]], [[layers]], [network] and [faults], in this order: time sees who answered."""
    attacks, attack_tables = _build_list(layer_registry, top.attacks, "attacks", Layer)
    listed, listed_tables = _build_list(layer_registry, top.layers, "layers", Layer)
    tables: Settings = {"attacks": attack_tables, **({"layers": listed_tables} if listed_tables else {})}
    short: list[Layer] = []
    if top.network is not None:
        table = {("kind" if key == "name" else key): value for key, value in top.network.items()}
        made, resolved = build(layer_registry["network"], table, "network")
        short.append(made)
        tables["network"] = {("name" if key == "kind" else key): value for key, value in resolved.items()}
    if top.faults is not None:
        made, tables["faults"] = build(layer_registry["faults"], top.faults, "faults")
        short.append(made)
    return Layers((*attacks, *listed, *short), guard=top.guard == "on"), tables


def _build_list(registry: Any, tables: list[Settings], path: str, kind: type[Any]) -> tuple[list[Any], list[Settings]]:
    """What a list of tables names, and the tables with all defaults filled in."""
    made = [build_named(registry, table, path) for table in tables]
    for thing, table in made:
        if not isinstance(thing, kind):
            raise BadInput(
                f"{path}: {table['name']!r} should be a polyfed {kind.__name__}. Found {type(thing).__name__}."
            )
    return [thing for thing, _ in made], [table for _, table in made]


def drawn_keys(top: Top) -> Settings:
    """cohort_always and cohort_never, where they are given, and a guard or a check that is off."""
    given = {key: value for key in ("cohort_always", "cohort_never") if (value := getattr(top, key))}
    given |= {} if top.check_rows else {"check_rows": False}
    return given | ({"guard": top.guard} if top.guard == "off" else {})


def cohort_size(cohort: int | float | str, clients: int, always: Sequence[int] = (), never: Sequence[int] = ()) -> int:
    """Clients a round, from a number, a fraction below 1, or 'all'; with room for those who always take part."""
    for key, some in (("cohort_always", always), ("cohort_never", never)):
        if any(client >= clients for client in some):
            raise BadInput(f"{key} should be numbers below the number of clients, {clients}. Found {list(some)}.")
    if both := {*always} & {*never}:
        raise BadInput(f"A client is in cohort_always or in cohort_never. Found {sorted(both)} in both.")
    there = clients - len({*never})
    if not there:
        raise BadInput(f"cohort_never should leave somebody to train. Found all {clients} clients.")
    size = _size(cohort, clients, there)
    if size > there:
        whom = f"clients not in cohort_never, {there}" if never else f"clients, {clients}"
        raise BadInput(f"cohort should be at most the number of {whom}. Found {cohort}.")
    if len({*always}) > size:
        raise BadInput(f"cohort_always should name no more clients than a cohort has, {size}. Found {list(always)}.")
    return size


def _size(cohort: int | float | str, clients: int, there: int) -> int:
    if cohort == "all":
        return there
    if isinstance(cohort, float) and cohort < 1:
        return min(there, max(1, round(cohort * clients)))
    return int(cohort)


# things by name


def _name(table: Settings, path: str) -> tuple[str, Settings]:
    name = table.get("name", NAMES.get(path))
    if name is None:
        raise BadInput(f"The key '{path}.name' is needed and was not given.")
    if not isinstance(name, str):
        raise BadInput(f"{path}.name should be a name, as 'polyfed list' shows them. Found {shown(name)}.")
    return name, {key: value for key, value in table.items() if key != "name"}


def build_named(registry: Any, table: Settings, path: str, **given: Any) -> tuple[Any, Settings]:
    name, rest = _name(table, path)
    made, resolved = build(registry[name], rest, path, **given)
    return made, {"name": name, **resolved}


def build_algorithm(table: Settings) -> tuple[Algorithm, Settings]:
    made, resolved = build_named(algorithms, table, "algorithm")
    return check_algorithm(made), resolved


def check_algorithm(made: Any) -> Algorithm:
    """Refuse what is not a method."""
    if not isinstance(made, Algorithm):
        found = f"the class {made.__name__}: add ()" if isinstance(made, type) else type(made).__name__
        raise BadInput(f"An algorithm should be a name or a subclass of polyfed.Algorithm. Found {found}.")
    return made


def build_engine(table: Settings) -> tuple[partial[Engine], Settings]:
    """Engines are checked now and started later: they may own processes."""
    name, rest = _name(table, "engine")
    values, resolved = arguments(engines[name], rest, "engine", ("parts", "layers"))
    return partial(engines[name], **values), {"name": name, **resolved}


def build_problem(table: Settings, dataset: Dataset, seed: int) -> tuple[Problem, Settings]:
    name, rest = _name(table, "model")
    own = {key: rest.pop(key) for key in list(rest) if key in Model.model_fields}
    general: Model = check(lambda: Model(name=name, **own), own, "model", Model.model_fields)
    if ":" not in name:  # ours can be made without memory, to see how much they would take
        _check_size(name, rest, dataset)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the initial weights
        try:
            model, resolved = build(models[name], rest, "model", dataset=dataset)
        except (RuntimeError, MemoryError, OverflowError) as error:  # sizes that torch cannot count, or hold
            raise BadInput(f"The model {shown(name)} cannot be made of {shown(rest)}: {cut(str(error))}.") from error
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"model.name = {name!r} should return a torch.nn.Module. Found {type(model).__name__}.")
    if general.weights is not None:
        general.weights = str(model_file(general.weights))  # for those who resume it elsewhere
        begin_with(model, Path(general.weights))
    dtype = getattr(torch, general.dtype)
    problem = Problem(model, dataset.objectives, dtype, freeze=general.freeze, autocast=general.autocast)
    return problem, {**general.model_dump(exclude_none=True), **resolved}


def _check_size(name: str, table: Settings, dataset: Dataset) -> None:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            model, _ = build(models[name], dict(table), "model", dataset=dataset)
        except Exception:  # whatever it is, making it in earnest will say
            return
    check_room(2 * sum(p.numel() for p in model.parameters()), f"The sizes of [model] ({', '.join(table)})")
