"""From a TOML file to a plan: read, override, check, build. Bad input ends here, before anything is written."""

from __future__ import annotations

import importlib
import importlib.resources
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import partial, reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field

from polyfed.algorithms import algorithms
from polyfed.core.client import Wrappers
from polyfed.core.errors import BadInput, nearest
from polyfed.core.fleet import Engine, Fleet
from polyfed.core.problem import Problem
from polyfed.core.registry import forget
from polyfed.core.settings import Settings, Table, arguments, build, check, whole
from polyfed.data import Dataset
from polyfed.data.build import build_data
from polyfed.engines import engines
from polyfed.layers.attacks import attacks
from polyfed.layers.faults import Faults
from polyfed.layers.network import Network
from polyfed.models import models
from polyfed.run.evaluation import fits
from polyfed.run.loop import Plan

Whole = Annotated[int, Field(ge=1), BeforeValidator(whole)]
_reached: set[str] = set()  # folders of experiments read in this process
Fraction = Annotated[float, Field(gt=0, lt=1)]


def _clients(value: Any) -> Any:
    """1.0 could mean one client or all of them."""
    if isinstance(value, bool) or (isinstance(value, float) and not 0 < value < 1):
        raise ValueError("a whole number of clients, a fraction below 1, or 'all'")
    return value


Cohort = Annotated[Whole | Fraction | Literal["all"], BeforeValidator(_clients)]


NAMES = {"data": "two-digits", "model": "mlp", "algorithm": "fedcmoo", "engine": "local", "attacks": "misreport"}


class Top(Table):
    """The keys of an experiment; the tables are checked against what they name."""

    rounds: Whole = 100
    seed: Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(whole)] = 0
    cohort: Cohort = 10
    data: Settings = Field(default_factory=dict)
    model: Settings = Field(default_factory=dict)
    algorithm: Settings = Field(default_factory=dict)
    engine: Settings = Field(default_factory=dict)
    evaluate: Settings = Field(default_factory=dict)
    attacks: list[Settings] = Field(default_factory=list)
    schedule: Settings = Field(default_factory=dict)
    models: Settings = Field(default_factory=dict)
    faults: Settings | None = None
    network: Settings | None = None


class Evaluate(Table):
    """every: rounds between evaluations; clients, stationarity, improved: what else is measured, by asking clients."""

    every: Whole = 1
    clients: bool = False
    stationarity: Annotated[int, Field(ge=0)] = 0
    improved: bool = False


class Model(Table):
    name: str
    dtype: Literal["float32", "float64"] = "float32"


def builtin() -> dict[str, Path]:
    """The experiments that come with polyfed."""
    folder = Path(str(importlib.resources.files("polyfed.experiment") / "builtin"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read(source: str) -> tuple[str, Settings]:
    """An experiment's name and settings, from a file or a built-in name."""
    path = builtin().get(source, Path(source))
    if path.is_dir():
        raise BadInput(f"{source} is a directory; an experiment is a TOML file or a built-in name.")
    if not path.is_file():
        raise BadInput(f"No experiment {source!r}: neither a file nor built in.{nearest(source, builtin())}")
    try:
        settings = tomllib.loads(path.read_bytes().decode())
    except UnicodeDecodeError as error:
        raise BadInput(f"{source} is not text; an experiment is a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source} is not valid TOML: {error}.") from error
    reach(folder(source))
    reach(settings.pop("folder", ""))  # in the copy that a run keeps
    return str(settings.pop("name", path.stem)), settings


def folder(source: str) -> str:
    """Where an experiment's own functions may lie: beside its file."""
    return "" if source in builtin() else str(Path(source).parent.resolve())


def reach(folder: str) -> None:
    """Let an experiment name functions that lie in a folder, before those of experiments read earlier."""
    if not folder:
        return
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()  # the file may be younger than the last look into its folder
    _forget_others(Path(folder))
    _reached.add(folder)


def _forget_others(folder: Path) -> None:
    """Two experiments may each have a `mine.py`, or a package `mine`: what another's registered goes with it."""
    names = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/__init__.py")}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in names and getattr(module, "__file__", None):
            file = Path(str(module.__file__))
            root = file.parents[name.count(".") + (file.name == "__init__.py")]
            if root != folder and str(root) in _reached:
                del sys.modules[name]
                forget(name)


def rest_of(table: Any) -> Settings:
    """A table without its name."""
    return {key: value for key, value in table.items() if key != "name"} if isinstance(table, dict) else {}


def override(settings: Settings, assignments: Iterable[str]) -> Settings:
    """Apply KEY=VALUE texts, `algorithm.lr=0.1`; a value is TOML, or else a plain word, and nothing takes a key out."""
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"--set needs KEY=VALUE, as in --set algorithm.lr=0.1. Found {text!r}.")
        *path, leaf = key.strip().split(".")
        _check_model(settings, [*path, leaf])
        node = settings
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise BadInput(f"--set {key}: {part!r} is a value, not a table.")
        if value.strip():
            node[leaf] = _value(value.strip())
        else:
            node.pop(leaf, None)
    return settings


def _check_model(settings: Settings, path: list[str]) -> None:
    """A misspelt model would otherwise become one more, made of the experiment's defaults."""
    known = settings.get("models")
    if path[0] == "models" and len(path) > 1 and path[1] not in (known if isinstance(known, dict) else ()):
        raise BadInput(f"--set {'.'.join(path)}: there is no model {path[1]!r}.{nearest(path[1], known or ())}")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def plan(name: str, settings: Settings) -> tuple[Plan, Settings]:
    """Check and build everything; the settings come back with every default filled in."""
    top: Top = check(lambda: Top(**settings), settings, "", Top.model_fields)
    if top.models:
        from polyfed.experiment.models import plan_many

        return plan_many(name, top)
    if top.schedule:
        raise BadInput("[schedule] shares the clients out among models: give them as [models.NAME]. Found none.")
    evaluate: Evaluate = check(lambda: Evaluate(**top.evaluate), top.evaluate, "evaluate", Evaluate.model_fields)
    algorithm, algorithm_table = build_named(algorithms, top.algorithm, "algorithm")
    engine, engine_table = build_engine(top.engine)
    dataset, federation, data_table = build_data({"name": NAMES["data"], **top.data}, top.seed)
    if getattr(algorithm, "pooled", False):
        federation, top.cohort = federation.pooled(), "all"
    problem, model_table = build_problem(top.model, dataset, top.seed)
    wrappers, attack_tables = build_attacks(top.attacks, len(federation))
    around, around_tables = build_around(top, len(federation))
    fits(problem, federation, algorithm)
    made = Plan(
        name, algorithm_table["name"], engine_table["name"], problem, federation, algorithm,
        partial(engine, problem, federation, wrappers),
        top.rounds, top.seed, cohort_size(top.cohort, len(federation)), evaluate.model_dump(),
        around,
    )  # fmt: skip
    tables = {"data": data_table, "model": model_table, "algorithm": algorithm_table, "engine": engine_table}
    head = {"rounds": top.rounds, "seed": top.seed, "cohort": top.cohort}
    return made, {**head, "attacks": attack_tables, **tables, **around_tables, "evaluate": evaluate.model_dump()}


def build_around(top: Top, clients: int) -> tuple[Callable[[Fleet], Fleet], Settings]:
    """[faults] and [network]: the fleets around the engine, faults inside, so that time sees who answered."""
    kinds = {"faults": Faults, "network": Network}
    tables = {name: table for name in kinds if (table := getattr(top, name)) is not None}
    made = {name: build(kinds[name], table, name) for name, table in tables.items()}
    if "faults" in made:
        made["faults"][0].check(clients)

    def around(fleet: Fleet) -> Fleet:
        return reduce(lambda inner, layer: layer(inner), [layer for layer, _ in made.values()], fleet)

    return around, {name: resolved for name, (_, resolved) in made.items()}


def build_attacks(tables: list[Settings], clients: int) -> tuple[Wrappers, list[Settings]]:
    """[[attacks]]: what some clients do to everybody else."""
    made = [build_named(attacks, table, "attacks") for table in tables]
    for attack, _ in made:
        if any(c >= clients for c in attack.clients):
            raise BadInput(f"attacks.clients should be numbers below {clients}. Found {attack.clients}.")
    return Wrappers(attacks=tuple(attack for attack, _ in made)), [resolved for _, resolved in made]


def cohort_size(cohort: int | float | str, clients: int) -> int:
    """Clients a round, from a number, a fraction below 1, or 'all'."""
    if cohort == "all":
        return clients
    if isinstance(cohort, float) and cohort < 1:
        return max(1, round(cohort * clients))
    if int(cohort) > clients:
        raise BadInput(f"cohort should be at most the number of clients, {clients}. Found {cohort}.")
    return int(cohort)


def _name(table: Settings, path: str) -> tuple[str, Settings]:
    name = table.get("name", NAMES[path])
    if not isinstance(name, str):
        raise BadInput(f"{path}.name should be a name, as 'polyfed list' shows them. Found {name!r}.")
    return name, {key: value for key, value in table.items() if key != "name"}


def build_named(registry: Any, table: Settings, path: str, **given: Any) -> tuple[Any, Settings]:
    name, rest = _name(table, path)
    made, resolved = build(registry[name], rest, path, **given)
    return made, {"name": name, **resolved}


def build_engine(table: Settings) -> tuple[partial[Engine], Settings]:
    """Engines are checked now and started later: they may own processes."""
    name, rest = _name(table, "engine")
    values, resolved = arguments(engines[name], rest, "engine", ("problem", "federation", "wrappers"))
    return partial(engines[name], **values), {"name": name, **resolved}


def build_problem(table: Settings, dataset: Dataset, seed: int) -> tuple[Problem, Settings]:
    name, rest = _name(table, "model")
    own = {key: rest.pop(key) for key in list(rest) if key in Model.model_fields}
    general: Model = check(lambda: Model(name=name, **own), own, "model", Model.model_fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the initial weights
        model, resolved = build(models[name], rest, "model", dataset=dataset)
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"model.name = {name!r} should return a torch.nn.Module. Found {type(model).__name__}.")
    return Problem(model, dataset.objectives, getattr(torch, general.dtype)), {**general.model_dump(), **resolved}
