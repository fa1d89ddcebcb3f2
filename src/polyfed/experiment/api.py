"""`polyfed.train` and `polyfed.train_many`: for people with their own models and data."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tomli_w

from polyfed.algorithms import Algorithm, algorithms
from polyfed.algorithms.models.multimodel import MultiModel
from polyfed.algorithms.server_optimizers import ServerOptimizer, server_optimizers
from polyfed.callbacks.printer import shown_progress
from polyfed.compress import Compressor, compressors
from polyfed.core.code import trusted
from polyfed.core.engine import Engine, engines
from polyfed.core.errors import BadInput, shown
from polyfed.core.federation import Federation
from polyfed.core.layer import Layer, Layers, layer_name
from polyfed.core.part import Part
from polyfed.core.problem import Problem
from polyfed.core.settings import as_table, check, choose
from polyfed.experiment.building import assemble, build_engine, check_algorithm, drawn_keys
from polyfed.experiment.fingerprint import check_fingerprint, fingerprint
from polyfed.experiment.recording import folder_of, made, recorded, without_record
from polyfed.experiment.schema import Evaluate, Top
from polyfed.layers import layers as layer_registry
from polyfed.rates import check_horizon
from polyfed.run.callbacks import Callback
from polyfed.run.callbacks import callbacks as callback_registry
from polyfed.run.directory import RunDirectory, differences, guard_note
from polyfed.run.loop import Result, execute
from polyfed.run.plan import Plan, apart, one_part
from polyfed.weights import Weighting, weightings


@trusted()
def train(
    problem: Problem | Callable[[], Problem] | str,
    federation: Federation | Callable[[], Federation] | str,
    algorithm: Algorithm | str | Mapping[str, Any],
    *,
    rounds: int = 100,
    cohort: int | float | str = "all",
    cohort_always: Sequence[int] = (),
    cohort_never: Sequence[int] = (),
    seed: int = 0,
    engine: str | Mapping[str, Any] | Callable[..., Engine] = "local",
    evaluate: Mapping[str, Any] | None = None,
    layers: Sequence[Layer | str | Mapping[str, Any]] = (),
    guard: str = "on",
    check_rows: bool = True,
    callbacks: Sequence[Callback | str | Mapping[str, Any]] = (),
    out: str | Path | None = None,
    resume: bool = False,
    keep: bool = True,
    progress: bool = False,
) -> Result:
    """Train a problem over a federation and return the model, the history and the run directory.

    Args:
        problem: the model and its objectives; or a function that makes them, or its name, 'mymodels:problem', which
            `polyfed.load` needs to make them again.
        federation: the clients' data; or a function that makes it, or its name.
        algorithm: the method: `polyfed.FedCMOO(lr=0.1)`, a name ('fedcmoo'), or a dict with a name and settings.
        rounds: how many rounds.
        cohort: clients a round, a number, a fraction below 1, or 'all'.
        cohort_always: clients that take part in every round; the rest of a cohort is drawn from the others.
        cohort_never: clients that take part in no round; they are evaluated like the others.
        seed: same seed, same model.
        engine: where clients work: a name, a dict with a name and settings, {'name': 'local', 'workers': 2}, or a
            subclass of `polyfed.Engine`.
        evaluate: the keys of [evaluate] in an experiment, {'every': 10}.
        layers: what stands between the method and the clients, in order: attacks, faults, ...
        guard: 'on': replies that are far longer than the cohort's are left out, and named; 'off': they are let in.
        check_rows: whether every client's rows are looked at before the first round: NaN, labels out of range.
        callbacks: who is told of every round.
        out: the run directory; default: a new one under runs/.
        resume: whether a run that stopped in `out` goes on, given the same arguments.
        keep: whether the run directory stays; if not, nothing is left on the disk, also after an error.
        progress: whether progress is shown on stderr: a bar in a terminal, plain lines elsewhere.

    Returns:
        The trained module, one line of metrics a round, the run's directory, and a summary.
    """
    settings = RunSettings.of(rounds, cohort, cohort_always, cohort_never, seed, engine, evaluate, guard, check_rows)
    given, model_from = made(problem, Problem, "problem")
    data, data_from = made(federation, Federation, "federation")
    method = check_algorithm(_chosen(algorithm))
    if method.pooled:
        data, settings.top.cohort = data.pooled(), "all"
    plan = settings.plan(one_part(given, data, method), None, layers, callbacks)
    record = recorded(given, data, model_from, data_from)
    return settings.carry_out(plan, {"algorithm": described(method), **record}, Ways(out, resume, keep, progress))


@trusted()
def train_many(
    algorithm: MultiModel,
    federations: Federation | Mapping[str, Federation],
    *,
    rounds: int = 100,
    cohort: int | float | str = "all",
    cohort_always: Sequence[int] = (),
    cohort_never: Sequence[int] = (),
    seed: int = 0,
    engine: str | Mapping[str, Any] | Callable[..., Engine] = "local",
    evaluate: Mapping[str, Any] | None = None,
    layers: Sequence[Layer | str | Mapping[str, Any]] = (),
    guard: str = "on",
    check_rows: bool = True,
    callbacks: Sequence[Callback | str | Mapping[str, Any]] = (),
    out: str | Path | None = None,
    resume: bool = False,
    keep: bool = True,
    progress: bool = False,
) -> Result:
    """Train all models of a `MultiModel` over one pool of clients.

    Args:
        algorithm: the models, their methods, and the schedule by which they share the clients.
        federations: each model's data by its name, or one that serves all of them.
        rounds, cohort_always, cohort_never, seed, engine, evaluate, layers, guard: as in `polyfed.train`.
        keep, progress: as in `polyfed.train`.
        check_rows, callbacks, out, resume: as there, too.
        cohort: clients a round, of all models together.

    Returns:
        As `polyfed.train`; the model is an `nn.ModuleDict`.
    """
    settings = RunSettings.of(rounds, cohort, cohort_always, cohort_never, seed, engine, evaluate, guard, check_rows)
    _check_kind("algorithm", algorithm, MultiModel)
    data = federations if isinstance(federations, Mapping) else dict.fromkeys(algorithm.models, federations)
    if set(data) != set(algorithm.models):
        raise BadInput(f"Each model needs a federation. Found {sorted(data)} for {sorted(algorithm.models)}.")
    for federation in data.values():
        _check_kind("federation", federation, Federation)
    problems = apart([(m, problem) for m, (problem, _) in algorithm.models.items()])
    parts = {m: Part(problems[m], data[m], check_algorithm(a)) for m, (_, a) in algorithm.models.items()}
    plan = settings.plan(parts, algorithm, layers, callbacks)
    models = {
        m: {"algorithm": described(a), **recorded(problem, data[m])} for m, (problem, a) in algorithm.models.items()
    }
    more = {"schedule": {"name": algorithm.name}, "models": models}
    return settings.carry_out(plan, more, Ways(out, resume, keep, progress))


@dataclass(frozen=True)
class Ways:
    """How a run is kept and watched: out, resume, keep and progress of `train`."""

    out: str | Path | None
    resume: bool
    keep: bool
    progress: bool

    def path(self) -> Path | None:
        """The run directory, where one is named."""
        if not self.keep and self.out is not None:
            raise BadInput(f"keep=False leaves nothing behind, and out names what is kept. Found out={self.out!r}.")
        return _path(self.out)

    def watched(self, plan: Plan) -> Plan:
        """The plan with its progress shown, if it is to be; after the others, who may stop the run."""
        return replace(plan, callbacks=(*plan.callbacks, shown_progress(plan.rounds))) if self.progress else plan


def _passing(plan: Plan, settings: dict[str, Any]) -> Result:
    """A run in a directory that is gone afterwards."""
    with TemporaryDirectory(prefix="polyfed-", ignore_cleanup_errors=True) as folder:
        directory = RunDirectory.create(Path(folder) / "run", plan.title, settings)
        directory.passing = True
        return execute(plan, directory)


@dataclass
class RunSettings:
    """What `train` and `train_many` are given besides models and data, checked."""

    top: Top
    engine_table: dict[str, Any]
    engine: partial[Engine]
    evaluate: dict[str, Any]

    @classmethod
    def of(
        cls,
        rounds: int,
        cohort: int | float | str,
        cohort_always: Sequence[int],
        cohort_never: Sequence[int],
        seed: int,
        engine: str | Mapping[str, Any] | Callable[..., Engine],
        evaluate: Mapping[str, Any] | None,
        guard: str,
        check_rows: bool,
    ) -> RunSettings:
        given = {"rounds": rounds, "seed": seed, "cohort": cohort, "guard": guard, "check_rows": check_rows}
        numbers: Any = {name: _number(v) for name, v in given.items()}
        lists = {"cohort_always": cohort_always, "cohort_never": cohort_never}
        numbers |= {name: [*map(_number, _listed(name, values))] for name, values in lists.items()}
        if callable(engine):
            engine = engines.name_of(engine)
        if not isinstance(engine, str | Mapping):
            raise BadInput(f"engine should be a name or a dict with a name and settings. Found {shown(engine)}.")
        table = {"name": engine} if isinstance(engine, str) else _table("engine", engine)
        made, _ = build_engine(table)
        wanted = {} if evaluate is None else _table("evaluate", evaluate)
        checked: Evaluate = check(lambda: Evaluate(**wanted), wanted, "evaluate", Evaluate.model_fields)
        top = check(lambda: Top(**numbers), numbers, "", Top.model_fields)
        return cls(top, {"name": "local", **table}, made, checked.model_dump())

    def plan(
        self,
        parts: Mapping[str, Part],
        schedule: MultiModel | None,
        layers: Sequence[Layer | str | Mapping[str, Any]],
        callbacks: Sequence[Callback | str | Mapping[str, Any]],
    ) -> Plan:
        listed = tuple(choose(layer_registry, layer, "layers", Layer) for layer in _listed("layers", layers))
        around = Layers(listed, guard=self.top.guard == "on")
        told = tuple(choose(callback_registry, one, "callbacks", Callback) for one in _listed("callbacks", callbacks))
        top = self.top
        return assemble(
            "python", parts, schedule, rounds=top.rounds, seed=top.seed, cohort=top.cohort, always=top.cohort_always,
            never=top.cohort_never, evaluate=self.evaluate, engine=self.engine, engine_name=self.engine_table["name"],
            layers=around, callbacks=told, check_rows=top.check_rows,
        )  # fmt: skip

    def carry_out(self, plan: Plan, more: dict[str, Any], ways: Ways) -> Result:
        """Begin the run, or go on with it."""
        top, path = self.top, ways.path()
        settings: dict[str, Any] = {"python": True, "rounds": plan.rounds, "seed": top.seed, "cohort": top.cohort}
        settings |= drawn_keys(top)
        if plan.layers.listed:
            settings["layers"] = [{"name": layer_name(layer), **_fields(layer)} for layer in plan.layers.listed]
        settings |= {"engine": self.engine_table, "evaluate": _plain(self._evaluated()), **more}
        settings |= {"folder": folder} if (folder := folder_of(settings)) else {}
        settings["fingerprint"] = fingerprint(plan.parts)
        plan = ways.watched(plan)
        if ways.resume and path is not None and (path / "experiment.toml").is_file():
            directory = RunDirectory.open(path)
            said = check_same_settings(directory, settings)
            result = execute(replace(plan, notes=(*plan.notes, *said)), directory)
        elif ways.keep:
            result = execute(plan, RunDirectory.create(path, plan.title, settings))
        else:
            result = _passing(plan, settings)
        if lost := result.summary.get("never_used"):
            warnings.warn(" ".join(lost), RuntimeWarning, stacklevel=4)
        return result

    def _evaluated(self) -> dict[str, Any]:
        """The settings of the evaluation; an optimum that was given as an array is only said to be there."""
        optimum = self.evaluate.get("optimum")
        return self.evaluate if isinstance(optimum, str | None) else {**self.evaluate, "optimum": "given"}


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise BadInput(f"{name} should be a list. Found {shown(values)}.")
    return list(values)


def _table(name: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise BadInput(f"{name} should be a dict with texts as keys. Found {shown(values)}.")
    return dict(values)


def _check_kind(name: str, thing: Any, kind: type[Any]) -> None:
    if not isinstance(thing, kind):
        raise BadInput(f"{name} should be a polyfed.{kind.__name__}. Found {shown(thing)}.")


def _path(out: Any) -> Path | None:
    if not isinstance(out, str | Path | None):
        raise BadInput(f"out should be the path of a directory. Found {shown(out)}.")
    return None if out is None else Path(out)


def _number(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _chosen(algorithm: Any) -> Any:
    """A method by its name, or as it is."""
    return choose(algorithms, algorithm, "algorithm", Algorithm) if isinstance(algorithm, str | Mapping) else algorithm


def described(algorithm: Algorithm) -> dict[str, Any]:
    """An algorithm as a table, for the copy of the settings that a run keeps."""
    return {"name": algorithm.title, **_fields(algorithm)}


def _fields(thing: Any) -> dict[str, Any]:
    """The settings of a dataclass that are given."""
    names: list[str] = [f.name for f in fields(thing)] if is_dataclass(thing) else []
    return {name: _plain(value) for name in names if (value := getattr(thing, name)) is not None}


def _plain(value: Any) -> Any:
    """Settings as TOML has them."""
    if isinstance(value, Compressor):
        return as_table(compressors, value)
    if isinstance(value, ServerOptimizer):
        return as_table(server_optimizers, value)
    if isinstance(value, Weighting):
        return {"name": weightings.name_of(type(value)), **_fields(value)}
    if callable(value) and not is_dataclass(value):
        return getattr(value, "__name__", type(value).__name__)
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def check_same_settings(directory: RunDirectory, settings: dict[str, Any]) -> tuple[str, ...]:
    """A run goes on with the settings it was begun with; only more rounds may be asked for. What is to be said."""
    before, now = without_record(directory.settings()), without_record(tomllib.loads(tomli_w.dumps(settings)))
    check_horizon(now, before.get("rounds"), now.get("rounds"))
    check_fingerprint(directory.path, before.get("fingerprint", {}), now["fingerprint"])
    for key in sorted({*before, *now} - {"rounds", "engine", "guard", "check_rows", "fingerprint"}):
        for name, was, given in differences(key, before.get(key), now.get(key)):
            raise BadInput(f"{directory.path} was begun with {name} = {shown(was)}; found {shown(given)}.")
    return guard_note(before, now)
