"""Everything a run needs, checked and built: nothing is written yet."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.algorithms.models.multimodel import MultiModel, check_cohort
from polyfed.client.autograd import Autograd
from polyfed.client.device import HOST
from polyfed.client.runner import ClientRunner
from polyfed.core.algorithm import Algorithm, State
from polyfed.core.engine import Engine
from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.federation import Federation
from polyfed.core.labels import check_rows, missing_labels
from polyfed.core.layer import Layers
from polyfed.core.part import Part, Parts
from polyfed.core.problem import Batch, Problem, is_peft
from polyfed.core.structure import leaves
from polyfed.run.callbacks import Callback
from polyfed.run.trial import check_augment, check_losses, check_outputs, why_not


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it is begun.

    Args:
        name: the experiment's.
        title: what the summary calls the method: the algorithm's name, or the schedule's.
        engine_name: what the summary calls the engine.
        parts: the models, by name; one model alone is called ''.
        engine: from parts and layers to an engine: it may own processes, and so is started with the run.
        rounds, seed, cohort: how many rounds, of which randomness, over how many clients each.
        evaluate: the settings of `Evaluation`; 'optimum' by part.
        layers: what stands between the algorithms and the clients.
        callbacks: who is told of every round.
        schedule: how several models share the clients.
        notes: what is said when the run begins: the rules that give settings their values.
        always, never: clients that take part in every round, and clients that take part in none.
    """

    name: str
    title: str
    engine_name: str
    parts: Parts
    engine: Callable[[Parts, Layers], Engine]
    rounds: int
    seed: int
    cohort: int
    evaluate: Mapping[str, Any] = field(default_factory=dict)
    layers: Layers = field(default_factory=Layers)
    callbacks: tuple[Callback, ...] = ()
    schedule: MultiModel | None = None
    notes: tuple[str, ...] = ()
    always: tuple[int, ...] = ()
    never: tuple[int, ...] = ()

    def methods(self) -> dict[str, Algorithm]:
        """Each part's method."""
        return {name: method for name, part in self.parts.items() if (method := part.algorithm) is not None}

    def weights(self, states: Mapping[str, State]) -> dict[str, Tensor]:
        """What is saved as the model, as `load_state_dict` wants it; of several models under their names."""
        every = {m: part.problem.state_dict(states[m]["x"], states[m]["buffers"]) for m, part in self.parts.items()}
        return {qualified_weight(m, n): value for m, weights in every.items() for n, value in weights.items()}

    def saved(self, states: Mapping[str, State]) -> dict[str, Tensor]:
        """What the model file holds: the weights, and what the methods add to them."""
        extras = {m: method.extras(states[m]) for m, method in self.methods().items()}
        more = {qualified_weight(m, n): value for m, arrays in extras.items() for n, value in arrays.items()}
        return {**self.weights(states), **more}

    def module(self) -> nn.Module:
        """A module that takes these weights: the model, or an `nn.ModuleDict` of all of them."""
        if self.schedule is None:
            return self.parts[""].problem.replica(HOST)
        return nn.ModuleDict({name: part.problem.replica(HOST) for name, part in self.parts.items()})

    def trained(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The model with these weights, in evaluation mode; of adapters the base is the problem's own."""
        module = self.module()
        unknown = module.load_state_dict(weights, strict=False)
        adapters = any(is_peft(part.problem.model) for part in self.parts.values())
        if unknown.unexpected_keys or (unknown.missing_keys and not adapters):
            names = shown([*unknown.unexpected_keys, *unknown.missing_keys])
            raise BadInput(f"The weights should be the model's own. Found other names: {names}.")
        return module.eval()


def qualified_weight(model: str, name: str) -> str:
    """An array's name in the model file: 'model.layer.weight' where there are several models."""
    return f"{model}.{name}" if model else name


def pool_size(parts: Parts) -> int:
    """How many clients there are: all models share one pool."""
    sizes = {name: len(part.federation) for name, part in parts.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} for {name!r}" for name, size in sizes.items())
        raise BadInput(f"All models share one pool of clients, so each needs data of the same number. Found {found}.")
    return next(iter(sizes.values()))


def check_parts(
    parts: Parts, layers: Layers, cohort: int, schedule: MultiModel | None, *, rows: bool = True
) -> list[str]:
    """Refuse, before anything is written, what cannot be trained: alone, together, or under these layers.

    rows: whether every client's rows are looked at. Returns what is to be said of labels that are missing.
    """
    clients = pool_size(parts)
    if schedule is not None:
        check_cohort(list(parts), cohort, clients)
        for name, part in parts.items():
            _check_model_name(name)
            if part.algorithm is not None and part.algorithm.pooled:
                raise BadInput(f"Model {name!r}: a centralised method has no clients to share; choose another method.")
    for part in parts.values():
        check_compatible(part.problem, part.federation, part.algorithm, rows=rows)
    layers.check(parts, clients)
    said = {name: missing_labels(part.problem, part.federation) for name, part in parts.items()}
    return [f"{name}: {note}" if name else note for name, notes in said.items() for note in notes]


def check_splits(parts: Parts, splits: Sequence[str]) -> None:
    """Refuse to measure on rows that nobody has; clients' own models are not measured on the server's."""
    for name, part in parts.items():
        f, whose = part.federation, f"Model {name!r}: " if name else ""
        own = part.algorithm is not None and type(part.algorithm).personal is not Algorithm.personal
        test = f.test is not None or (f.server is not None and not own)
        there = {"train": True, "valid": f.valid is not None, "test": test}
        if split := next((s for s in splits if not there[s]), None):
            raise BadInput(
                f"{whose}evaluate.splits names {split!r}, and clients have no such rows; set data.{split} to the "
                f"fraction that they keep aside. Found {', '.join(s for s in there if there[s])}."
            )


def _check_model_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or hasattr(nn.ModuleDict(), name):
        raise BadInput(
            f"A model's name should be letters, digits, - and _, and no method of torch's ModuleDict. Found {name!r}."
        )


def check_compatible(
    problem: Problem, federation: Federation, algorithm: Algorithm | None = None, *, rows: bool = True
) -> None:
    """Refuse, before a run is begun: a model that cannot take the data, a loss of the wrong shape, an algorithm that
    cannot work with the model, or with so many clients; and, of every client, rows that cannot be trained on."""
    if algorithm is not None:
        algorithm.check(problem, len(federation))
    for name in federation.holds:
        if name not in problem.names:
            raise BadInput(f"'holds' names {name!r}, which is no objective here.{nearest(name, problem.names)}")
    client = int(np.flatnonzero(federation.examples)[0])
    batch = federation.take(torch.from_numpy(federation.rows("train", client)[:2]))
    error = _tried(problem, federation, batch, rows)
    if error is not None and any(t.dim() == 4 for t in leaves(batch.x)):  # it calls view() after a convolution
        problem.channels_last = False
        error = _tried(problem, federation, batch, rows)
    if isinstance(error, BadInput):
        raise error
    if error is not None:
        raise BadInput(f"The model cannot be applied to the data: {why_not(error, batch)}") from error
    check_augment(federation, batch)
    if problem.doubtful:
        problem.without_buffers(_unchanged(problem, batch))


def _unchanged(problem: Problem, batch: Batch) -> set[str]:
    """The doubtful buffers that a forward in training leaves as they are: positions and masks, not statistics."""
    with torch.random.fork_rng(devices=[]):
        start = problem.initial()
        after = Autograd(problem).buffers_after(start["x"], start["buffers"], batch)
    before, now = (problem.split_buffers(values) for values in (start["buffers"], after))
    return {name for name in problem.doubtful if torch.equal(before[name], now[name])}


def _tried(problem: Problem, federation: Federation, batch: Batch, rows: bool) -> Exception | None:
    start = problem.initial()
    try:
        with torch.random.fork_rng(devices=[]):
            autograd = ClientRunner(problem, federation, Layers()).autograd
            with torch.no_grad():
                outputs = autograd.outputs(start["x"], start["buffers"], batch, train=False)
                check_outputs(problem, outputs, batch)
                if rows:
                    check_rows(problem, federation, outputs)
                autograd.measure_split(start["x"], start["buffers"], batch, [True] * len(problem.names))
                if rows:
                    check_losses(problem, federation, autograd)
    except Exception as error:
        return error
    return None


def apart(problems: Sequence[tuple[str, Problem]]) -> dict[str, Problem]:
    """Problems by name; one module given for two models becomes two, or one's weights would overwrite the other's."""
    seen: set[int] = set()
    found: dict[str, Problem] = {}
    for name, problem in problems:
        again = id(problem.model) in seen
        own = problem.objectives, problem.dtype
        found[name] = Problem(copy.deepcopy(problem.model), *own, autocast=problem.autocast) if again else problem
        seen.add(id(problem.model))
    return found


def one_part(problem: Problem, federation: Federation, algorithm: Algorithm | None = None) -> dict[str, Part]:
    """The parts of a run that trains one model."""
    return {"": Part(problem, federation, algorithm)}
