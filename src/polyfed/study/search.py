"""What a search is asked for: an experiment, what may be changed in it, and by what its trials are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from polyfed.core.errors import BadInput, shown
from polyfed.core.part import Parts
from polyfed.core.settings import Settings
from polyfed.experiment.building import plan as build_plan
from polyfed.experiment.reading import override
from polyfed.run.callbacks import Callback
from polyfed.run.plan import Plan
from polyfed.run.process import one_thread
from polyfed.study.asked import read_experiment
from polyfed.study.cells import Cell, check_folder
from polyfed.study.grid import as_text
from polyfed.study.hopeless import SPLIT, Judge, read_judge
from polyfed.study.parameters import Parameter, check_keys
from polyfed.study.runner import Outcome, Pool, Told, check_jobs, default_jobs
from polyfed.study.sampling import Values

VALID = 0.1  # of each client's rows are kept aside where the experiment keeps none
EVALUATIONS = 20  # of a trial are enough: every client is asked about its validation rows
ROUNDS = 100  # of an experiment that does not say


class Runs(Protocol):
    """Runs trials, as `polyfed.study.runner.Pool` does."""

    @property
    def working(self) -> int:
        """How many are submitted and not yet handed out as outcomes."""

    def submit(self, cell: Cell) -> None:
        """A trial to be run, if it is not finished."""

    def next(self) -> Outcome | None:
        """The next outcome; None where no trial is left."""


Watchers = Callable[[Cell], Sequence[Callback]]  # of a trial
Opened = Callable[[int, Told, Watchers], AbstractContextManager[Runs]]  # with so many processes


@dataclass(frozen=True)
class Request:
    """What a caller asks for, whatever is searched.

    Args:
        parameters: what may be changed.
        trials: how many.
        by: what trials are compared by, as a person wrote it.
        out: the study's folder, if it is named.
    """

    parameters: tuple[Parameter, ...]
    trials: int
    by: Any = None
    out: str | Path | None = None


@dataclass(frozen=True)
class Search:
    """What is searched.

    Args:
        name: the experiment's.
        request: what is asked for.
        study: the folder.
        tried: the experiment's keys as trials run them.
        judge: what trials are compared by.
        first: the experiment's own values, with which the first trial is made.
        open: begins to run trials.
        jobs: how many at once.
        own: the experiment's keys as the best one is written with other values in them; None where it is no file.
        where: the folder of the experiment's own functions.
        notes: what is said of it.
    """

    name: str
    request: Request
    study: Path
    tried: Settings
    judge: Judge
    first: Values
    open: Opened
    jobs: int = 1
    own: Settings | None = None
    where: str = ""
    notes: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """Of the runs, and of what is drawn."""
        return int(self.tried.get("seed", 0))


def of_experiment(
    experiment: Any,
    request: Request,
    rounds: int | None,
    seed: int | None,
    settings: Mapping[str, Any] | Iterable[str],
    jobs: int | None,
    allow_code: Sequence[str],
    stack: ExitStack,
) -> Search:
    """A search in an experiment; bad input is refused before anything is written.

    Args:
        experiment: a file, a built-in name or a dict.
        request: what is asked for.
        rounds, seed, settings, jobs, allow_code: as in `polyfed.tune`.
        stack: until it is closed, what the experiment names may be imported.
    """
    name, keys, where = read_experiment(experiment, allow_code, stack)
    keys |= {} if seed is None else {"seed": seed}
    keys = override(keys, _assignments(settings))
    check_keys(request.parameters, keys)
    tried, notes = _validated(keys, rounds)
    study = Path(request.out or f"runs/tune-{name}")
    check_folder(study, "tune")
    with one_thread():
        plan, resolved = build_plan(name, copy.deepcopy(tried))
    check_rows(plan.parts)
    judge, note = read_judge(request.by, plan)
    if jobs is not None:
        check_jobs(jobs, [tried])
    processes = default_jobs([tried], request.trials) if jobs is None else min(jobs, request.trials)

    def opened(jobs: int, told: Told, watchers: Watchers) -> Pool:
        def prepare(cell: Cell, plan: Plan) -> Plan:
            return replace(plan, callbacks=(*plan.callbacks, *watchers(cell)))

        return Pool(study, name, jobs=jobs, folder=where, told=told, prepare=prepare)

    return Search(
        name, request, study, tried, judge, own_values(request.parameters, resolved), opened, processes, keys, where,
        tuple(filter(None, (*notes, note))),
    )  # fmt: skip


def _assignments(settings: Mapping[str, Any] | Iterable[str]) -> list[str]:
    if isinstance(settings, Mapping):
        return [f"{key}={as_text(value)}" for key, value in settings.items()]
    return list(settings)


def _validated(keys: Settings, rounds: int | None) -> tuple[Settings, tuple[str, ...]]:
    """The keys with which trials are run: with validation rows that are measured, and what is said of that."""
    tried = copy.deepcopy(keys)
    tried |= {} if rounds is None else {"rounds": rounds}
    evaluate = _table(tried, "evaluate")
    measured(evaluate, tried.get("rounds", ROUNDS), bool(tried.get("callbacks")))
    models = tried.get("models")
    several = [one for one in (models.values() if isinstance(models, dict) else ()) if isinstance(one, dict)]
    tables = [_table(tried, "data"), *(_table(one, "data") for one in several if "data" in one)]
    without = [table for table in tables if not table.get("valid")]
    for table in without:
        table["valid"] = VALID
    note = (
        f"The experiment keeps no validation rows: in the trials each client keeps {VALID:g} of its own aside "
        "(data.valid)."
    )
    return tried, (note,) if without else ()


def _table(settings: Settings, key: str) -> Settings:
    """A table of the settings, made where there is none; its name in short becomes one."""
    found = settings.get(key, {})
    settings[key] = {"name": found} if isinstance(found, str) else found
    if not isinstance(settings[key], dict):
        raise BadInput(f"{key} should be a table. Found {shown(found)}.")
    table: Settings = settings[key]
    return table


def check_rows(parts: Parts) -> None:
    """Refuse to compare trials on rows that nobody has.

    Args:
        parts: the models and their data.
    """
    for name, part in parts.items():
        valid = part.federation.valid
        if valid is None or not valid.length.sum():
            whose = f" of model {name!r}" if name else ""
            raise BadInput(
                f"Trials are compared on validation rows, and no client{whose} keeps any: set data.valid, or valid= of "
                "the federation, to the fraction of its rows that each is to keep aside; of a single row that is none."
            )


def measured(evaluate: Settings, rounds: Any, watched: bool) -> None:
    """Have validation rows measured, and not too often.

    Args:
        evaluate: the table of settings; it is changed.
        rounds: of a trial.
        watched: whether there are callbacks, who may count evaluations.
    """
    every = evaluate.get("every", 1)
    if isinstance(rounds, int) and isinstance(every, int) and not watched:
        evaluate["every"] = max(every, rounds // EVALUATIONS)
    evaluate["splits"] = list(dict.fromkeys([*evaluate.get("splits", ()), SPLIT]))


def own_values(parameters: Sequence[Parameter], resolved: Settings) -> Values:
    """What the experiment itself has for the parameters."""
    found: Values = {}
    for parameter in parameters:
        node: Any = resolved
        for word in parameter.key.split("."):
            node = node.get(word) if isinstance(node, dict) else None
        found |= {} if node is None else {parameter.key: node}
    return found
