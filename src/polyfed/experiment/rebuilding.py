"""A run's models and data, made again: from its experiment, or from what a Python run recorded. Each when it is asked
for, and only by code that is allowed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyfed.core.algorithm import Algorithm
from polyfed.core.code import rule_restored
from polyfed.core.errors import BadInput, cut, shown
from polyfed.core.federation import Federation
from polyfed.core.inputs import Inputs
from polyfed.core.part import Part
from polyfed.core.problem import LOSSES, Objective, Problem, squared_error
from polyfed.core.settings import Settings, check
from polyfed.experiment.building import build_algorithm, rebuild
from polyfed.experiment.imports import use_code_of
from polyfed.experiment.recording import constructor, first_row, made, makers
from polyfed.experiment.schema import Record


class Origin:
    """Where a run's models and data come from.

    Args:
        path: the run's directory.
        settings: what it began with.
        allow_code: packages whose code it may name.
        remedy: how a person allows another.
    """

    def __init__(self, path: Path, settings: Settings, allow_code: Sequence[str], remedy: str) -> None:
        self.path, self.allow_code, self.remedy = path, allow_code, remedy
        self.python = bool(settings.get("python", False))
        self.settings = settings
        self.several = "models" in settings
        models = settings.get("models", {})
        if not isinstance(models, dict) or not all(isinstance(table, dict) for table in models.values()):
            raise BadInput(f"'models' in the experiment.toml of {path} should be tables. Found {shown(models)}.")
        for table in [settings, *models.values()] if self.python else ():
            check(partial(Record, **table), table, "", Record.model_fields)
        self._federations: dict[str, Federation] = {}

    @property
    def names(self) -> list[str]:
        """Of the models; one alone is called ''."""
        return list(self.settings["models"]) if self.several else [""]

    def table(self, name: str) -> Settings:
        """A model's tables."""
        table: Settings = self.settings["models"].get(name, {}) if self.several else self.settings
        return table

    def method(self, name: str) -> str:
        """What a model's method is called."""
        return str(self.table(name).get("algorithm", {}).get("name", ""))

    def tasks(self, name: str) -> list[int]:
        """The task of every client, where they share some."""
        found = self.table(name).get("algorithm", {}).get("tasks")
        return [int(task) for task in found] if isinstance(found, list) else []

    def algorithm(self, name: str) -> Algorithm | None:
        """A model's method, where its settings are all in the run."""
        if not self.python:
            return self._parts[name].algorithm
        try:
            with self.code():
                return build_algorithm(self.table(name).get("algorithm", {}))[0]
        except BadInput:  # a rule or a weighting that was a function
            return None

    @contextmanager
    def code(self) -> Iterator[None]:
        """What the run names is imported from beside it, or from where somebody allows."""
        folder = str(self.settings.get("folder", ""))
        with rule_restored(), torch.random.fork_rng(devices=[]):
            use_code_of("", self.path / "experiment.toml", folder, self.allow_code, self.remedy)
            yield

    @cached_property
    def _parts(self) -> dict[str, Part]:
        """Of an experiment: models are made for their data, so that all of it is made at once."""
        settings = {key: value for key, value in self.settings.items() if key not in ("name", "folder")}
        with self.code():
            return rebuild(settings)

    # models

    def module(self, name: str) -> nn.Module:
        """A module like the one that was trained, with initial weights."""
        if not self.python:
            return self._parts[name].problem.model
        model = self.table(name).get("model", {})
        if "from" in model:
            return self._problem(model).model
        with self.code():
            return _from_class(model, self._ask_for_model)

    def frozen(self, name: str, module: nn.Module) -> nn.Module:
        """The module with those parameters frozen that the run did not train; a copy, where that changes anything."""
        told = set(self.table(name).get("model", {}).get("frozen", ())) if self.python else set()
        if not any(n in told and p.requires_grad for n, p in module.named_parameters()):
            return module
        made = copy.deepcopy(module)
        for n, p in made.named_parameters():
            p.requires_grad_(p.requires_grad and n not in told)
        return made

    def problem(self, name: str, module: nn.Module) -> Problem:
        """The problem, around a module."""
        if not self.python:
            return around(module, self._parts[name].problem)
        table = self.table(name)
        if "from" in table.get("model", {}):
            return around(module, self._problem(table["model"]))
        told = table.get("objectives", {})
        if not told:
            raise BadInput(f"{self.path} does not say what its objectives were; give polyfed.load(..., model=problem).")
        if some := next((n for n, one in told.items() if "metrics" in one or not _plain(one)), None):
            raise BadInput(
                f"The objective {shown(some)} of {self.path} has functions of its own, which a run cannot keep; give "
                "polyfed.load(..., model=problem), or train with a function that makes the problem."
            )
        return _recorded(module, told, table["model"])

    def judged(self, name: str, module: nn.Module) -> Problem:
        """A problem that knows what each objective sees of the output, whether its loss is known or not."""
        table = self.table(name)
        if not self.python or "from" in table.get("model", {}):
            return self.problem(name, module)
        told = table.get("objectives", {})
        if not told or any(_own(one.get("output")) for one in told.values()):
            raise BadInput(
                f"{self.path} does not say what its objectives see of the model's output; give polyfed.load(..., "
                "model=problem)."
            )
        return _recorded(module, told, table["model"])

    def _problem(self, model: Mapping[str, Any]) -> Problem:
        with self.code():
            return made(str(model["from"]), Problem, "problem")[0]

    def _ask_for_model(self, why: str) -> BadInput:
        return BadInput(f"{why}; give the model: polyfed.load({shown(str(self.path))}, model=...).")

    # data

    def federation(self, name: str) -> Federation:
        """The clients' data."""
        if not self.python:
            return self._parts[name].federation
        if name not in self._federations:
            path = self.table(name).get("data", {}).get("from")
            if path is None:
                raise BadInput(
                    f"{self.path} does not say what its data were made by: from Python, train(problem, "
                    "'mydata:federation', ...) does, with a function of a module."
                )
            with self.code():
                self._federations[name] = made(str(path), Federation, "federation")[0]
        return self._federations[name]

    def known_data(self, name: str) -> bool:
        """Whether the data can be made again."""
        return not self.python or "from" in self.table(name).get("data", {})

    def inputs(self, name: str) -> Inputs | None:
        """What an example looks like; None where the run does not say."""
        if not self.python:
            federation = self.federation(name)
            return Inputs.of(first_row(federation), federation.features)
        told = self.table(name).get("data", {}).get("inputs")
        return None if told is None else Inputs.from_table(told)

    def prepare(self, name: str) -> Any:
        """What turns a raw batch of x into what the model takes; None where nothing does."""
        told = self.table(name).get("data", {})
        if self.known_data(name):
            return self.federation(name).prepare
        function = told.get("prepare")
        if function is None:
            return None
        if str(function).startswith("<"):
            raise BadInput(
                f"The data of {self.path} had a prepare, {shown(function)}, which cannot be imported: write it as a "
                "function of a module, or train with a function that makes the federation; or prepare rows yourself "
                "and call the model."
            )
        with self.code():
            return makers[str(function)]

    def classes(self, name: str) -> Mapping[str, Sequence[str]]:
        """Of targets that were texts, what their numbers stand for."""
        if not self.python:
            return self.federation(name).classes
        found: Mapping[str, Sequence[str]] = self.table(name).get("data", {}).get("classes", {})
        return found

    def clients(self, name: str) -> list[Any]:
        """What the clients are called."""
        if not self.python:
            return list(self.federation(name).names)
        return list(self.table(name).get("data", {}).get("names", ()))

    def pool(self, name: str) -> int:
        """How many clients there were; 0 where the run does not say."""
        return int(self.table(name).get("data", {}).get("clients", 0)) if self.python else len(self.federation(name))


def around(module: nn.Module, problem: Problem) -> Problem:
    """A problem like another, around a module."""
    return Problem(module, problem.objectives, problem.dtype, autocast=problem.autocast)


def _recorded(module: nn.Module, told: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any]) -> Problem:
    """The problem of a record; a loss that is not known is squared error, for somebody who does not ask."""
    dtype = torch.float64 if model.get("dtype") == "float64" else torch.float32
    objectives = [
        Objective(
            name,
            one["loss"] if one["loss"] in LOSSES else squared_error,
            classes=one.get("classes"),
            output=tuple(pick) if isinstance(pick := one.get("output"), list) else pick,
        )
        for name, one in told.items()
    ]
    return Problem(module, objectives, dtype, autocast=bool(model.get("autocast", False)))


def _plain(one: Mapping[str, Any]) -> bool:
    """Whether an objective is all in the record."""
    return one.get("loss") in LOSSES and not _own(one.get("output"))


def _own(value: Any) -> bool:
    """Whether a record has the name of a function in place of a value."""
    if isinstance(value, list):
        return any(_own(one) for one in value)
    return isinstance(value, str) and (value.startswith("<") or ":" in value)


def _from_class(model: Mapping[str, Any], ask: Any) -> nn.Module:
    """A module of a recorded class: one that takes no arguments, or whose arguments are recorded."""
    path = str(model.get("class", ""))
    if not path or "." in path.partition(":")[2] or path.startswith("__main__"):
        where = f"was of {shown(path)}, which cannot be imported" if path else "is not recorded"
        raise ask(f"The model of the run {where}")
    kind: Any = makers[path]
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise BadInput(f"The run's model.class should be a torch.nn.Module. Found {shown(path)}.")
    try:
        if "config" not in model:
            if constructor(kind):
                raise ask(f"{shown(path)} takes arguments ({cut(', '.join(constructor(kind)), 60)}), not in the run")
            return kind()
        config = json.loads(model["config"])
        own: Any = getattr(kind, "config_class", None)
        return kind(own.from_dict(config)) if hasattr(own, "from_dict") else kind(**config)
    except BadInput:
        raise
    except Exception as error:  # whatever a user's class does
        raise ask(f"{shown(path)} cannot be made ({cut(f'{type(error).__name__}: {error}', 100)})") from error
