"""Searching for settings on a problem and a federation of one's own: trials of `polyfed.train`, in this process."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyfed.algorithms import Algorithm, algorithms
from polyfed.core.errors import BadInput, Interrupted, PolyfedError, shown
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem
from polyfed.core.settings import Settings, choose
from polyfed.experiment.api import RunSettings, described, train
from polyfed.experiment.building import check_algorithm
from polyfed.experiment.fingerprint import fingerprint
from polyfed.experiment.recording import made
from polyfed.run.callbacks import Callback
from polyfed.run.plan import Plan, one_part
from polyfed.study.cells import Cell, check_folder
from polyfed.study.hopeless import read_judge
from polyfed.study.own import OURS, plainly
from polyfed.study.parameters import check_keys
from polyfed.study.runner import AGAIN, Outcome, Teller, Told, finished
from polyfed.study.search import ROUNDS, Request, Search, Watchers, check_rows, measured, own_values

NAME = "python"
VARIED = ("algorithm", "cohort")  # what of `train`'s arguments may be a parameter


@dataclass(frozen=True)
class OwnTrial:
    """What trials are of.

    Args:
        problem: as `polyfed.train` takes it.
        federation: as there.
        arguments: further ones of `polyfed.train`.
    """

    problem: Problem | Callable[[], Problem] | str
    federation: Federation | Callable[[], Federation] | str
    arguments: dict[str, Any]


def of_problem(own: OwnTrial, algorithm: Algorithm | str | Mapping[str, Any], request: Request) -> Search:
    """A search on a problem; bad input is refused before anything is written.

    Args:
        own: the problem, its data, and how it is trained.
        algorithm: the method.
        request: what is asked for.
    """
    _check_arguments(own, request)
    problem = made(own.problem, Problem, "problem")[0]
    federation = made(own.federation, Federation, "federation")[0]
    named = isinstance(algorithm, str | Mapping)
    method = check_algorithm(choose(algorithms, algorithm, "algorithm", Algorithm) if named else algorithm)
    parts = one_part(problem, federation, method)
    check_rows(parts)
    tried = _keys(own, method) | {"fingerprint": fingerprint(parts)}
    check_keys(request.parameters, tried)
    study = Path(request.out or f"runs/tune-{NAME}")
    check_folder(study, "tune")
    judge, note = read_judge(request.by, _plan(tried, parts))

    def opened(jobs: int, told: Told, watchers: Watchers) -> OwnTrials:
        return OwnTrials(study, replace(own, problem=problem, federation=federation), told, watchers)

    first = own_values(request.parameters, tried)
    return Search(NAME, request, study, tried, judge, first, opened, notes=(note,) if note else ())


def _check_arguments(own: OwnTrial, request: Request) -> None:
    if ours := next((key for key in own.arguments if key in OURS and key != "seed"), None):
        raise BadInput(f"A search gives {ours!r} to each trial itself; use out and progress of tune.")
    if wrong := next((p.key for p in request.parameters if p.key.split(".")[0] not in VARIED), None):
        raise BadInput(f"With a problem, a parameter is a setting of the algorithm, or cohort. Found {shown(wrong)}.")


def _keys(own: OwnTrial, method: Algorithm) -> Settings:
    """The keys of an experiment that trials are of, as far as they are one."""
    given = own.arguments
    found = {"rounds": ROUNDS, "seed": 0, "cohort": "all"} | {key: plainly(value) for key, value in given.items()}
    evaluate = dict(given.get("evaluate") or {})
    measured(evaluate, found["rounds"], bool(given.get("callbacks")))
    return found | {"evaluate": evaluate, "algorithm": described(method)}


def _plan(keys: Settings, parts: Any) -> Plan:
    """Enough of a plan to know objectives, metrics and what is measured."""
    numbers = keys["rounds"], keys["cohort"], (), (), keys["seed"]
    return RunSettings.of(*numbers, "local", keys["evaluate"], "on", True).plan(parts, None, (), ())


class OwnTrials:
    """Runs trials one after the other in this process.

    Args:
        study: the folder.
        own: what trials are of.
        told: is told of every round.
        watchers: more callbacks of a trial.
    """

    def __init__(self, study: Path, own: OwnTrial, told: Told, watchers: Watchers) -> None:
        self.study, self.own, self.told, self.watchers = study, own, told, watchers
        self._waiting: deque[Cell] = deque()

    def __enter__(self) -> OwnTrials:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def working(self) -> int:
        """How many are submitted and not yet handed out as outcomes."""
        return len(self._waiting)

    def submit(self, cell: Cell) -> None:
        """A trial to be run, if it is not finished."""
        self._waiting.append(cell)

    def next(self) -> Outcome | None:
        """The next outcome; None where no trial is left."""
        if not self._waiting:
            return None
        cell = self._waiting.popleft()
        return finished(self.study, cell) or self._outcome(cell)

    def _outcome(self, cell: Cell) -> Outcome:
        run, keys = self.study / cell.name, cell.settings
        changed = {key: keys[key] for key in ("rounds", "cohort", "seed", "evaluate")}
        arguments = {**self.own.arguments, **changed, "callbacks": self._callbacks(cell)}
        try:
            found = train(self.own.problem, self.own.federation, keys["algorithm"], out=run, resume=True, **arguments)
            return Outcome(cell, run, found.summary)
        except Interrupted:
            raise Interrupted(f"Stopped; {AGAIN.replace('command', 'call')}.") from None
        except PolyfedError as error:
            return Outcome(cell, run, why=str(error), bad=isinstance(error, BadInput))

    def _callbacks(self, cell: Cell) -> list[Callback]:
        """The caller's, anew for each trial, since they remember; who ends hopeless ones; who tells of it."""
        given = copy.deepcopy(list(self.own.arguments.get("callbacks", ())))
        return [*given, *self.watchers(cell), Teller(cell, self.told)]
