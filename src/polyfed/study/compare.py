"""Which method is better: several methods on one experiment, over several seeds.

A comparison is a study: a folder with a run for each method, setting and seed (see `cells`), and study.json:

    {"format": 1, "kind": "compare", "name": "two-digits",
     "state": "running" | "stopped" | "done",        'done' although some runs may have failed
     "rounds": 100, "seeds": [0, 1, 2],              rounds: null where runs differ in them
     "rows": [{"row": "fedcmoo lr=0.1", "values": {"algorithm.name": "fedcmoo", "algorithm.lr": 0.1}}, ...],
     "cells": [{"run": "fedcmoo-lr0.1-seed0-1a2b3c4d",    the run directory, relative to this file
                "row": "fedcmoo lr=0.1", "seed": 0,
                "state": "done" | "failed" | "missing",
                "why": ""}, ...],                    of a run that failed, the sentence
     "notes": ["Left out, because fedavg does not have it: algorithm.compress."],

and, when all runs have come to an end (before, these keys are not there):

     "split": "test",                                the rows that figures are of
     "figures": [{"key": "left.accuracy", "title": "left accuracy", "objective": "left", "metric": "accuracy",
                  "better": "higher", "shown": true},     'shown': in the table; there is more than it has room for
                 {"key": "worst.accuracy", "title": "worst accuracy", "over": "worst", ...}, ...],
     "target": {"figure": {...}, "value": 0.83, "given": false, "text": "accuracy at least ..."} | null,
     "table": [{"row": "fedcmoo lr=0.1", "runs": 3,       that came to their end
                "figures": {"left.accuracy": {"mean": 0.9, "std": 0.01, "values": [0.9, 0.91, null], "best": true}},
                "totals": {"rounds": {"mean", "std", "values"}, "bytes_up": ..., "bytes_down": ..., "seconds": ...},
                "to_target": {"reached": 3, "rounds": {"mean", "std", "values"}, "bytes_up": ..., "seconds": ...}}],
     "tests": {"name": "paired t-test ..." | null, "why": "" | why there is none,
               "pairs": [{"figure": "left.accuracy", "better": "fedcmoo", "worse": "fedavg", "difference": 0.03,
                          "p": 0.01, "holds": true}]}}    p: corrected

'values' are in the order of the seeds, null where a run failed or the figure is not finite.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

from polyfed.core.code import trusted
from polyfed.core.errors import BadInput, Interrupted, shown
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem
from polyfed.study.asked import read_experiment
from polyfed.study.cells import Cell, check_folder, locked, read_study, restore_study, write_study
from polyfed.study.comparison import Comparison
from polyfed.study.grid import Grid, make_grid, read_choices, read_settings
from polyfed.study.live import Nobody, Watch, watching
from polyfed.study.measures import Measure, read_target
from polyfed.study.own import Own, OwnRuns, own_grid
from polyfed.study.runner import AGAIN, Line, Outcome, Pool, Told, check_jobs, default_jobs, finished
from polyfed.study.table import tabulate

FORMAT = 1
About = dict[str, Any]


class Runs(Protocol):
    """Runs cells; `Pool` does."""

    def run(self, cells: Iterable[Cell]) -> Iterable[Outcome]:
        """All cells; their outcomes as they come."""


Open = Callable[[Sequence[Cell], Told], AbstractContextManager[Runs]]  # for cells that are missing


def compare(
    experiment: str | Path | Mapping[str, Any] | None = None,
    *,
    algorithms: str | Iterable[Any] | Mapping[str, Any],
    problem: Problem | Callable[[], Problem] | str | None = None,
    federation: Federation | Callable[[], Federation] | str | None = None,
    seeds: int | Sequence[int] = 3,
    rounds: int | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    target: str = "",
    jobs: int | None = None,
    out: str | Path | None = None,
    allow_code: Sequence[str] = (),
    progress: bool = False,
    **more: Any,
) -> Comparison:
    """Run several methods over several seeds, and compare them; called again, only what is missing is run.

    Args:
        experiment: a TOML file, a built-in name, or the keys of one as a dict; leave it out for a problem of your own.
        algorithms: the methods: 'fedcmoo,fedavg' or a list of names and of dicts with a name and settings; with a
            problem, also methods as `polyfed.train` takes them, or a dict of them by the names that the table shows.
            Of an experiment with several models, methods of all of them, or schedules.
        problem: the model and its objectives, as in `polyfed.train`; the runs are then in this process, and seeds
            differ in whom they draw, not in where the model starts.
        federation: the clients' data, as there.
        seeds: how many, from the experiment's own on (0 with a problem); or which.
        rounds: how many, in place of the experiment's.
        settings: keys and values that differ from the experiment, {'algorithm.lr': [0.1, 0.3]}: a list is a choice of
            values, each of them compared. A key of [algorithm] applies to the methods that have it.
        target: 'accuracy=0.9' or 'left.loss=0.5', to say what it takes to get there; '' for what every run reaches.
        jobs: how many processes; as many as there are cores, if left out. 1 is this process.
        out: the study's folder; runs/compare-NAME if left out.
        allow_code: packages whose code the experiment's file may name.
        progress: whether progress is shown on stderr: a table in a terminal, plain lines elsewhere.
        more: with a problem, further arguments of `polyfed.train`: cohort, evaluate, engine, layers, ...

    Returns:
        The table, and where the runs are.
    """
    _check_target(target)
    watch = watching if progress else Nobody
    if problem is not None or federation is not None:
        if experiment is not None or problem is None or federation is None or settings or jobs not in (None, 1):
            raise BadInput(
                "Compare either an experiment or a problem with its federation; 'settings' and 'jobs' are the "
                "experiment's."
            )
        own = Own(problem, federation, {"rounds": 100 if rounds is None else rounds, **more})
        grid = own_grid(own, algorithms, _seeds(seeds, 0))
        study = _Study(Path(out or "runs/compare-python"), "python", grid, target)
        return study.run(lambda cells, told: OwnRuns(study.folder, own, told), watch)
    if experiment is None or more:
        found = f"also {', '.join(more)}" if more else "neither"
        raise BadInput(f"Name an experiment, or give problem and federation with arguments of train. Found {found}.")
    with ExitStack() as stack:
        name, keys, where = read_experiment(experiment, allow_code, stack)
        keys |= {} if rounds is None else {"rounds": rounds}
        grid = make_grid(keys, read_choices(algorithms), read_settings(settings), _seeds(seeds, keys.get("seed", 0)))
        for note in grid.notes if progress else ():
            print(note, file=sys.stderr)
        study = _Study(Path(out or f"runs/compare-{name}"), name, grid, target)
        return study.run(_pools(study, where, jobs), watch)


def compare_grid(
    grid: Grid, *, name: str, out: Path, jobs: int | None = None, until: float = math.inf, progress: bool = False
) -> Comparison:
    """Run a grid that is made already, as `compare` does; called again, only what is missing is run.

    Args:
        grid: its cells.
        name: the experiment's.
        out: the study's folder.
        jobs: how many processes, also on one GPU; if left out, as many as there are cores, on a GPU one.
        until: the moment, as `time.monotonic` has it, when what is not finished is ended, to be gone on with.
        progress: whether progress is shown on stderr.
    """
    study = _Study(out, name, grid, "")

    def opened(missing: Sequence[Cell], told: Told) -> Pool:
        many = jobs or default_jobs([cell.settings for cell in missing], len(missing))
        most = max(2, len(missing)) if missing else 1  # also one cell does not run here, where it would begin CUDA
        return Pool(out, name, jobs=min(many, most), told=told, until=until)

    with trusted():
        return study.run(opened, watching if progress else Nobody)


def _pools(study: _Study, where: str, jobs: int | None) -> Open:
    """Processes for the cells of an experiment.

    Args:
        study: which.
        where: the folder of the experiment's own functions.
        jobs: as a person asked for them.
    """
    every = [cell.settings for cell in study.grid.cells]
    if jobs is not None:
        check_jobs(jobs, every)

    def opened(missing: Sequence[Cell], told: Told) -> Pool:
        many = default_jobs(every, len(missing)) if jobs is None else max(1, min(jobs, len(missing)))
        return Pool(study.folder, study.name, jobs=many, folder=where, told=told)

    return opened


def _seeds(seeds: Any, first: Any) -> list[int]:
    found = seeds
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        found = range(first, first + seeds) if isinstance(first, int) else []
    some = list(found) if isinstance(found, Iterable) and not isinstance(found, str) else []
    good = [one for one in some if isinstance(one, int) and not isinstance(one, bool) and one >= 0]
    if not some or good != some or len({*some}) < len(some):
        raise BadInput(f"seeds should be how many, from 1 on, or a list of different ones. Found {shown(seeds)}.")
    return some


def _check_target(target: str) -> None:
    """Whether it is a target at all; whether there is such a metric, the first evaluation tells."""
    if target:
        read_target(target, [Measure(target.rpartition("=")[0].strip(), "lower", over="worst")])


def _by_rule(cell: Cell) -> bool:
    """Whether the number of rounds is found by a rule, when a run begins."""
    return not isinstance(cell.settings.get("rounds", 100), int)


class _Study:
    """A comparison that is run.

    Args:
        folder: the study's.
        name: the experiment's.
        grid: its cells.
        target: as a person wrote it.
    """

    def __init__(self, folder: Path, name: str, grid: Grid, target: str) -> None:
        self.folder, self.name, self.grid, self.target = folder, name, grid, target
        self.outcomes: dict[str, Outcome] = {}
        self._watch: Watch = Nobody([])
        self._unchecked = bool(target)  # until an evaluation has shown which metrics there are

    def run(self, opened: Open, watch: Callable[[Sequence[Cell]], Watch]) -> Comparison:
        """Run what is missing, and make the table.

        Args:
            opened: opens what runs cells.
            watch: makes who is shown how far it is.
        """
        check_folder(self.folder, "compare")
        with locked(self.folder):
            before = read_study(self.folder)
            try:
                about = self._whole(opened, watch)
            except BadInput:
                restore_study(self.folder, before)
                raise
            write_study(self.folder, about)
        return Comparison(self.folder, about)

    def _whole(self, opened: Open, watch: Callable[[Sequence[Cell]], Watch]) -> About:
        """What study.json says in the end."""
        state = "stopped"
        try:
            self._keep("running")
            self._run(opened, watch)
            state = "done"
        except KeyboardInterrupt:
            raise Interrupted(f"Stopped; {AGAIN}.") from None
        finally:
            self._keep(state)
        refused = [one.why for one in self.outcomes.values() if one.bad]
        if len(refused) == len(self.grid.cells):
            raise BadInput(refused[0])
        return self._about(state) | tabulate(self._in_order(), self._seeds(), self.target)

    def _run(self, opened: Open, watch: Callable[[Sequence[Cell]], Watch]) -> None:
        missing = [cell for cell in self.grid.cells if finished(self.folder, cell) is None]
        self._watch = watch(self.grid.cells)
        with opened(missing, self._told) as pool, self._watch:  # processes first, then what begins a thread
            for outcome in pool.run(self.grid.cells):
                self.outcomes[outcome.cell.name] = outcome
                self._watch.outcome(outcome)

    def _told(self, cell: Cell, line: Line) -> None:
        if self._unchecked and "losses" in line:
            metrics = {name: {"loss": None, **row} for name, row in line["metrics"].items()}
            read_target(self.target, [Measure(m, "lower", o) for o, row in metrics.items() for m in row])
            self._unchecked = False
        self._watch.line(cell, line)

    def _in_order(self) -> list[Outcome]:
        return [self.outcomes[cell.name] for cell in self.grid.cells]

    def _seeds(self) -> list[int]:
        return list(dict.fromkeys(cell.seed for cell in self.grid.cells))

    def _keep(self, state: str) -> None:
        write_study(self.folder, self._about(state))

    def _about(self, state: str) -> About:
        """What study.json says before the table."""
        rounds = {cell.settings.get("rounds", 100) for cell in self.grid.cells if not _by_rule(cell)}
        same = len(rounds) == 1 and not any(map(_by_rule, self.grid.cells))
        return {
            "format": FORMAT, "kind": "compare", "name": self.name, "state": state,
            "rounds": rounds.pop() if same else None, "seeds": self._seeds(),
            "rows": [{"row": row, "values": dict(values)} for row, values in self.grid.rows.items()],
            "cells": [self._cell(cell) for cell in self.grid.cells],
            "notes": self.grid.notes,
        }  # fmt: skip

    def _cell(self, cell: Cell) -> About:
        found = self.outcomes.get(cell.name)
        state = "missing" if found is None else "failed" if found.summary is None else "done"
        return {"run": cell.name, "row": cell.row, "seed": cell.seed, "state": state, "why": found.why if found else ""}
