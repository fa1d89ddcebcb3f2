"""How one point of a front is trained: as a run of an experiment, or of a problem and a federation from Python."""

from __future__ import annotations

import copy
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from polyfed.algorithms import Algorithm
from polyfed.algorithms import algorithms as methods
from polyfed.core.errors import BadInput, Interrupted, PolyfedError
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem
from polyfed.core.settings import Settings, accepts
from polyfed.experiment.api import described, train
from polyfed.experiment.building import plan
from polyfed.experiment.fingerprint import fingerprint
from polyfed.experiment.schema import NAMES
from polyfed.experiment.starting import MODEL, begin_with
from polyfed.run.plan import one_part
from polyfed.study.cells import Cell, checksum
from polyfed.study.front import Kind
from polyfed.study.grid import Choice, Setting, make_grid
from polyfed.study.path import AT_AN_END
from polyfed.study.runner import DataOnce, Outcome, Teller, Told, finished, run_cell

UNTOLD = ("callbacks", "engine", "progress", "check_rows")  # arguments that change no model
SETTING = {"preference": "preference", "scalarisation": "weights"}  # of the method, by which it is told where to go
DEFAULT = {"preference": "fedcmoo-pref", "scalarisation": "fedavg"}  # where the experiment's own cannot be told


@dataclass(frozen=True)
class Wanted:
    """A point that is to be trained.

    Args:
        kind: by which method.
        preference: r, or weights, by objective.
        start: the name of the run whose model it begins with; '' for the experiment's own start.
    """

    kind: Kind
    preference: Mapping[str, float]
    start: str

    @property
    def words(self) -> str:
        """The readable part of its run's name."""
        if len(self.preference) > 3:
            return self.kind
        return "-".join([self.kind, *(f"{_word(name)}{value:.3g}" for name, value in self.preference.items())])


def _word(name: str) -> str:
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.+") else "-" for c in name)
    return plain[:20].strip("-._") or "r"


class Trainer(ABC):
    """Trains points, each in a run directory of one folder; those that are there are not trained again."""

    objectives: tuple[str, ...]

    @abstractmethod
    def train(self, wanted: Wanted) -> Outcome:
        """A point's run, whether it was there, went on or is new."""


def method_for(kind: Kind, name: str) -> str:
    """The experiment's own method if it can be told where to go, else the default of its kind."""
    return name if SETTING[kind] in accepts(methods[name]) else DEFAULT[kind]


class OfExperiment(Trainer):
    """Points of an experiment.

    Args:
        folder: of the front.
        name: the experiment's.
        settings: the experiment's, with its seed.
        varied: changes by KEY=VALUE; one applies to those of the methods that have it.
        kinds: which are trained.
        rounds: of every point but the first.
        code: where the experiment's own functions lie.
        told: is told of every round.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: Settings,
        varied: Sequence[Setting],
        kinds: Sequence[Kind],
        rounds: int | None,
        code: str,
        told: Told,
    ) -> None:
        self.folder = folder
        _check_one(settings, varied)
        own = settings.get("algorithm", {}).get("name", NAMES["algorithm"])
        choices = {kind: method_for(kind, own) for kind in kinds}
        seed = settings.get("seed", 0)
        grid = make_grid(settings, [Choice(one) for one in dict.fromkeys(choices.values())], varied, [seed])
        by_method = {cell.values["algorithm.name"]: cell.settings for cell in grid.cells}
        self.settings = {kind: by_method[choices[kind]] for kind in kinds}
        self.notes = grid.notes
        self.name, self.seed, self.code, self.told = name, seed, code, told
        self.load = DataOnce()
        first = plan(name, copy.deepcopy(self.settings[kinds[0]]), load=self.load)[0]
        self.objectives = first.parts[""].problem.names
        self.rounds = rounds or later_rounds(first.rounds)

    def train(self, wanted: Wanted) -> Outcome:
        cell = self.cell(wanted)
        self.load.begin()
        return finished(self.folder, cell) or run_cell(
            self.folder, self.name, cell, folder=self.code, load=self.load, callbacks=[Teller(cell, self.told)]
        )

    def cell(self, wanted: Wanted) -> Cell:
        """The run of a point; its name goes by its neighbour's name, not by where the folder lies."""
        base = self.settings[wanted.kind]
        own = base["algorithm"]
        settings = {**base, "algorithm": {**own, **_told(wanted, methods[own["name"]], own)}}
        named = settings
        if wanted.start:
            settings["rounds"] = self.rounds
            model = base.get("model", {})
            named = {**settings, "model": {**model, "weights": wanted.start}}
            settings = {**settings, "model": {**model, "weights": str((self.folder / wanted.start).resolve())}}
        words = f"{wanted.words}-seed{self.seed}-{checksum(named)}"
        return Cell(wanted.words, self.seed, settings, words, {"kind": wanted.kind, **wanted.preference})


def _told(wanted: Wanted, method: type[Any], own: Settings) -> Settings:
    """The settings that tell a method where to go, and to arrive there: a step size that is one number falls to 0 along
    half a cosine, or the last round's noise would be a part of the point.

    Args:
        wanted: the point.
        method: the class.
        own: what it is set to; at an end, where an objective would count for nothing, it counts for a little.
    """
    told: Settings = {SETTING[wanted.kind]: dict(wanted.preference)}
    known = inspect.signature(method).parameters
    if "min_weight" in known and own.get("min_weight") is None and 0.0 in wanted.preference.values():
        told["min_weight"] = AT_AN_END
    rate = own.get("lr", known["lr"].default if "lr" in known else None)
    if isinstance(rate, int | float):
        told["lr"] = {"rule": "cosine", "start": float(rate)}
    return told


def later_rounds(first: int) -> int:
    """Rounds of a point that begins with its neighbour's model, for an experiment of so many."""
    return max(1, (first + 1) // 2)


def _check_one(settings: Settings, varied: Sequence[Setting]) -> None:
    """Refuse several models, and several values of a setting."""
    if settings.get("models"):
        raise BadInput("A front is about one model with several objectives. Found [models]; take them out.")
    if many := next((one for one in varied if len(one.values) > 1), None):
        found = ", ".join(many.values)
        raise BadInput(f"A front has one value for each key; 'polyfed compare' takes more. Found {many.key}={found}.")


class OfPython(Trainer):
    """Points of a problem and a federation.

    Args:
        folder: of the front.
        problem: the model, as it is to begin, and its objectives.
        federation: the clients' data.
        algorithms: a method for each kind.
        first: rounds of the first point.
        rounds: of every other.
        arguments: more of `polyfed.train`'s.
        told: is told of every round.
    """

    def __init__(
        self,
        folder: Path,
        problem: Problem,
        federation: Federation,
        algorithms: Mapping[Kind, Algorithm],
        first: int,
        rounds: int | None,
        arguments: Mapping[str, Any],
        told: Told,
    ) -> None:
        self.folder, self.problem, self.federation, self.told = folder, problem, federation, told
        self.algorithms, self.first, self.rounds = algorithms, first, rounds or later_rounds(first)
        self.arguments = dict(arguments)
        self.objectives = problem.names
        begin = sha256(problem.initial()["x"].numpy().tobytes()).hexdigest()
        self.of = [begin, fingerprint(one_part(problem, federation))]

    def train(self, wanted: Wanted) -> Outcome:
        cell = self.cell(wanted)
        if (done := finished(self.folder, cell)) is not None:
            return done
        out = self.folder / cell.name
        try:
            problem = copy.deepcopy(self.problem)
            if wanted.start:
                begin_with(problem.model, self.folder / wanted.start / MODEL)
            more = {**self.arguments, "callbacks": [*self.arguments.get("callbacks", ()), Teller(cell, self.told)]}
            method, rounds = self.method(wanted), self.rounds if wanted.start else self.first
            found = train(problem, self.federation, method, rounds=rounds, out=out, resume=True, **more)
            return Outcome(cell, out, found.summary)
        except Interrupted:
            raise
        except PolyfedError as error:
            return Outcome(cell, out, why=str(error), bad=isinstance(error, BadInput))

    def method(self, wanted: Wanted) -> Algorithm:
        """The kind's method, told where to go."""
        method: Any = self.algorithms[wanted.kind]
        own = {key: getattr(method, key) for key in ("lr", "min_weight") if hasattr(method, key)}
        made: Algorithm = replace(method, **_told(wanted, type(method), own))
        return made

    def cell(self, wanted: Wanted) -> Cell:
        """The run of a point: another model, other data or other settings are another run."""
        rounds = self.rounds if wanted.start else self.first
        plain = {key: value for key, value in self.arguments.items() if key not in UNTOLD}
        told = [described(self.method(wanted)), rounds, wanted.start, plain, self.of]
        mark = sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:8]
        seed = int(self.arguments.get("seed", 0))
        values = {"kind": wanted.kind, **wanted.preference}
        return Cell(wanted.words, seed, {}, f"{wanted.words}-seed{seed}-{mark}", values)
