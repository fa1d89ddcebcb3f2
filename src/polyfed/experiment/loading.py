"""`polyfed.load`: a run from its directory, with the model that it trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyfed.core.algorithm import Algorithm
from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.federation import Federation
from polyfed.core.inputs import Inputs
from polyfed.core.problem import Problem
from polyfed.experiment.exporting import export
from polyfed.experiment.predicting import predict
from polyfed.experiment.rebuilding import Origin, around
from polyfed.experiment.weights import TASKS, Arrays, from_checkpoint, of_model, restored, saved_weights
from polyfed.run.clients import ByClient
from polyfed.run.directory import RunDirectory
from polyfed.run.history import History
from polyfed.run.plan import check_compatible
from polyfed.run.showing import Shown

ALLOW = "if you trust it, add allow_code=['{package}']"


def load(
    run: str | Path | None,
    *,
    model: nn.Module | Problem | Mapping[str, Any] | None = None,
    best: bool = False,
    allow_code: Sequence[str] = (),
) -> Loaded:
    """A run from its directory: its model, its figures, and where they can be made again its problem and its data.

    A run of the command line is made again from its experiment. A run of `polyfed.train` is made again by itself where
    the class of its module can be imported and takes no arguments, or keeps them all as `config`, as Hugging Face's do;
    or where the problem was given as a function. Otherwise give the model. Nothing is unpickled.

    Args:
        run: the run's directory. One that stopped gives the model of its newest checkpoint.
        model: the module, of the class and sizes that were trained; its weights do not matter. Or a problem. Of several
            models, a dict of them by name. Of adapters (peft), the base with its weights: a run keeps the adapters.
        best: whether the model of the best round is loaded, which the callback 'best-model' keeps.
        allow_code: packages whose code the run may name, besides what lies in the folder it was started from, if that
            is above the run or the one that one stands in: a run's directory may be anybody's.
    """
    return load_run(run, model, best, allow_code, ALLOW)


def load_run(run: Any, model: Any, best: bool, allow_code: Sequence[str], remedy: str) -> Loaded:
    """As `load` says; remedy: how a sentence says that a package is allowed."""
    if not isinstance(run, str | Path):
        raise BadInput(f"run should be the path of a run's directory, which it kept. Found {shown(run)}.")
    directory = RunDirectory.open(Path(run))
    origin = Origin(directory.path, directory.started(), allow_code, remedy)
    given = _given(model, origin)
    problems = {name: one for name, one in given.items() if isinstance(one, Problem)}
    modules = {name: one.model if isinstance(one, Problem) else one for name, one in given.items()}
    modules |= {name: origin.module(name) for name in origin.names if name not in modules}
    modules = {name: origin.frozen(name, module) for name, module in modules.items()}
    summary = directory.result()
    if summary is None and not best:
        round, arrays = from_checkpoint(directory, _parts(origin, modules, problems))
    else:
        round, arrays = saved_weights(directory, summary or {}, best)
    found = {
        name: restored(module, of_model(arrays, name), directory.path, ":" in origin.method(name))
        for name, module in modules.items()
    }
    return Loaded(directory, round, summary or {}, {n: m for n, (m, _) in found.items()},
                  {n: e for n, (_, e) in found.items()}, origin, problems)  # fmt: skip


class Loaded(Shown):
    """A run that was loaded; in a notebook it shows its last figures and its losses.

    Args:
        directory: the run's.
        round: the rounds that its model has been trained for.
        summary: what result.json says; nothing of a run that stopped before its end.
        modules: the models by name, trained, in evaluation mode; one alone is called ''.
        extras: for each model, arrays of the model file that are no weights of it.
        origin: where models and data come from.
        problems: those that were given.
    """

    def __init__(
        self,
        directory: RunDirectory,
        round: int,
        summary: dict[str, Any],
        modules: Mapping[str, nn.Module],
        extras: Mapping[str, Arrays],
        origin: Origin,
        problems: Mapping[str, Problem],
    ) -> None:
        self.run, self.round, self.summary = directory.path, round, summary
        self.settings = directory.settings()
        self.modules, self.extras, self.origin = dict(modules), dict(extras), origin
        self._directory, self._problems = directory, dict(problems)

    @cached_property
    def model(self) -> nn.Module:
        """The trained module, in evaluation mode; of several models, an `nn.ModuleDict`."""
        return self.modules[""] if not self.origin.several else nn.ModuleDict(self.modules).eval()

    @cached_property
    def history(self) -> History:
        """One line of metrics a round; `history.to_pandas()` is a table."""
        return self._directory.history()

    @cached_property
    def clients(self) -> ByClient:
        """With evaluate.per_client, every client's own figures at the last evaluation, as `Result.clients`."""
        return self._directory.clients.last()

    @property
    def problem(self) -> Problem:
        """The trained model and its objectives; of several models, see `problems`."""
        return self._problem(self._name(None))

    @property
    def problems(self) -> dict[str, Problem]:
        """Each model and its objectives, by name."""
        return {name: self._problem(name) for name in self.modules}

    @property
    def federation(self) -> Federation:
        """The clients' data, made again; of several models, see `federations`."""
        return self.origin.federation(self._name(None))

    @property
    def federations(self) -> dict[str, Federation]:
        """Each model's data, by name."""
        return {name: self.origin.federation(name) for name in self.modules}

    def personal(self, client: Any, *, model: str | None = None) -> nn.Module:
        """A client's own model, of a method that learns one for each: the module with that client's weights.

        Args:
            client: its number, or its name where clients have names.
            model: which, of several models.
        """
        name = self._name(model)
        W = self.extras[name].get(f"{TASKS}W")
        if W is None:
            method = shown(self.origin.method(name))
            raise BadInput(f"{method} learns one model for all clients: take model. Found client {shown(client)}.")
        made = copy.deepcopy(self.modules[name])
        if W.dim() != 2 or W.shape[1] != sum(p.numel() for p in made.parameters() if p.requires_grad):
            raise BadInput(f"The clients' models of {self.run} are not of its model. Found arrays of {tuple(W.shape)}.")
        _put(made, W[self._task(name, client, len(W))])
        return made

    def predict(
        self, x: Any, *, model: str | None = None, client: Any = None, proba: bool = False, batch: int = 1024
    ) -> dict[str, NDArray[Any]]:
        """What the model says of some rows, an array for each objective.

        Classes of an objective with a loss of classes, as texts where the targets were; 0 and 1 of 'binary'; else the
        model's output.

        Args:
            x: rows as the run's data had them: arrays, or a table with the columns that the run's inputs were made of.
            model: which, of several models.
            client: whose own model, of a method that learns one for each client.
            proba: whether probabilities are wanted in place of classes.
            batch: how many rows are worked on at a time.
        """
        name = self._name(model)
        module = self.modules[name] if client is None else self.personal(client, model=name)
        return predict(self.origin, name, self._judged(name, module), x, proba, batch)

    def export(self, path: str | Path, *, model: str | None = None, client: Any = None) -> None:
        """Write the model for use without polyfed: .pt2 for `torch.export.load`, .onnx for ONNX's runtimes.

        It takes what the model takes, with any number of rows, and returns an output for each objective. What is
        written is read again and compared with the model.

        Args:
            path: the file; its ending says which.
            model: which, of several models.
            client: whose own model, of a method that learns one for each client.
        """
        name = self._name(model)
        module = self.modules[name] if client is None else self.personal(client, model=name)
        export(self.origin, name, self._judged(name, module), Path(path))

    def inputs(self, model: str | None = None) -> Inputs:
        """What an example of the run's data looks like: arrays by name, their shapes, types and columns.

        Args:
            model: which, of several models.
        """
        found = self.origin.inputs(self._name(model))
        if found is None:
            raise BadInput(f"{self.run} does not say what its inputs look like: it is of an older version.")
        return found

    def classes(self, model: str | None = None) -> Mapping[str, Sequence[str]]:
        """Of targets that were texts, what the numbers 0, 1, ... stand for.

        Args:
            model: which, of several models.
        """
        return self.origin.classes(self._name(model))

    def __repr__(self) -> str:
        methods = ", ".join(self.origin.method(name) for name in self.modules)
        return f"Loaded({str(self.run)!r}, {methods}, round {self.round})"

    def _problem(self, name: str) -> Problem:
        if name in self._problems:
            return around(self.modules[name], self._problems[name])
        return self.origin.problem(name, self.modules[name])

    def _judged(self, name: str, module: nn.Module) -> Problem:
        if name in self._problems:
            return around(module, self._problems[name])
        return self.origin.judged(name, module)

    def _name(self, model: str | None) -> str:
        """Which model is meant."""
        if model is None and len(self.modules) == 1:
            return next(iter(self.modules))
        if model is None or model not in self.modules:
            known = sorted(self.modules)
            found = "none" if model is None else f"{shown(model)}.{nearest(str(model), known)}".rstrip(".")
            raise BadInput(f"Say which model of the run is meant, one of {shown(known)}. Found {found}.")
        return model

    def _task(self, name: str, client: Any, tasks: int) -> int:
        """The task of a client, by its number or name."""
        called = self.origin.clients(name)
        number = called.index(client) if client in called else client
        known = self.origin.tasks(name)
        among = len(known) if known else self.origin.pool(name) or tasks
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < among:
            raise BadInput(f"client should be a number below {among}, or a client's name. Found {shown(client)}.")
        task = 0 if tasks == 1 else known[number] if known else number
        if not 0 <= task < tasks:
            raise BadInput(f"{self.run} has models of {tasks} tasks. Found task {task} for client {shown(client)}.")
        return task


def _put(module: nn.Module, x: Tensor) -> None:
    """A flat vector as the parameters of a module."""
    params = [p for p in module.parameters() if p.requires_grad]
    with torch.no_grad():
        for p, piece in zip(params, torch.split(x, [p.numel() for p in params]), strict=True):
            p.copy_(piece.view(p.shape))


def _given(model: Any, origin: Origin) -> dict[str, Any]:
    """The modules and problems that were given, by name."""
    if model is None:
        return {}
    given = dict(model.items()) if origin.several and isinstance(model, Mapping | nn.ModuleDict) else {"": model}
    if set(given) != set(origin.names):
        raise BadInput(f"model should be a dict with the run's models, {shown(origin.names)}. Found {shown(model)}.")
    for one in given.values():
        if not isinstance(one, nn.Module | Problem):
            raise BadInput(f"model should be a torch.nn.Module or a polyfed.Problem. Found {shown(one)}.")
    return given


def _parts(
    origin: Origin, modules: Mapping[str, nn.Module], problems: Mapping[str, Problem]
) -> dict[str, tuple[Problem, Algorithm | None]]:
    """What a checkpoint's arrays are the parameters and buffers of."""
    found = {}
    for name, module in modules.items():
        problem = problems.get(name) or origin.judged(name, module)
        if problem.doubtful and origin.known_data(name):
            check_compatible(problem, origin.federation(name), rows=False)  # which buffers travel
        found[name] = problem, origin.algorithm(name)
    return found
