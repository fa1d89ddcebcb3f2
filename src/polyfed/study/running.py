"""One cell of a study is run, or gone on with, in this process."""

from __future__ import annotations

import copy
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from polyfed.core.errors import BadInput, Interrupted, PolyfedError, cut
from polyfed.core.settings import Settings
from polyfed.data.build import build_data
from polyfed.experiment.building import Load, plan
from polyfed.experiment.reading import parse
from polyfed.run.callbacks import Callback, RunView
from polyfed.run.directory import RunDirectory, check_same
from polyfed.run.loop import execute
from polyfed.run.plan import Plan
from polyfed.study.cells import OUTPUT, Cell

Line = Mapping[str, Any]
Told = Callable[[Cell, Line], str | None]
Prepare = Callable[[Cell, Plan], Plan]
AGAIN = "the same command goes on from the checkpoints"


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Args:
        cell: which.
        run: its directory; of a cell that was refused, there is none on the disk.
        summary: what result.json says; None if the run did not come to its end.
        why: of a cell that failed, one sentence.
        bad: whether its input was refused, so that nothing was run.
    """

    cell: Cell
    run: Path
    summary: dict[str, Any] | None = None
    why: str = ""
    bad: bool = False


def finished(study: Path, cell: Cell) -> Outcome | None:
    """The outcome of a cell that an earlier call has finished; None if it is to be run."""
    run = study / cell.name
    if not (run / "result.json").is_file():
        return None
    try:
        return Outcome(cell, run, RunDirectory.open(run).result())
    except BadInput as error:
        return Outcome(cell, run, why=str(error), bad=True)


def run_cell(
    study: Path,
    name: str,
    cell: Cell,
    *,
    folder: str = "",
    load: Load = build_data,
    callbacks: Sequence[Callback] = (),
    prepare: Prepare | None = None,
) -> Outcome:
    """Run a cell in this process, or go on with it.

    Args:
        study: its folder.
        name: the experiment's.
        cell: which.
        folder: where the experiment's own functions lie, as `polyfed.experiment.reading.folder` says.
        load: makes the data.
        callbacks: who is told of every round, besides the experiment's.
        prepare: changes what is run.
    """
    run = study / cell.name
    try:
        made, resolved = plan(name, copy.deepcopy(cell.settings), load=load)
        made = made if prepare is None else prepare(cell, made)
        made = replace(made, callbacks=(*made.callbacks, *callbacks))
        settings = {"name": name, "folder": folder, **resolved}
        return Outcome(cell, run, execute(made, _directory(run, name, settings)).summary)
    except Interrupted:
        raise
    except BadInput as error:
        return Outcome(cell, run, why=str(error), bad=True)
    except PolyfedError as error:
        return Outcome(cell, run, why=str(error))


def _directory(run: Path, name: str, settings: Settings) -> RunDirectory:
    """A cell's run: a new one, or that which an earlier call began with the same settings."""
    if not (run / "experiment.toml").is_file():
        return RunDirectory.create(run, name, settings)
    found = RunDirectory.open(run)
    check_same(run, found.started(), parse(tomli_w.dumps(settings).encode(), str(run)), "What a setting stands for")
    return found


class DataOnce:
    """Makes data, and remembers those that the last cell used.

    Args:
        make: from a [data] table and a seed.
    """

    def __init__(self, make: Load = build_data) -> None:
        self._make = make
        self._kept: dict[str, Any] = {}
        self._used: set[str] = set()

    def __call__(self, table: Settings, seed: int) -> Any:
        key = json.dumps([seed, table], sort_keys=True, default=str)
        if key not in self._kept:
            for old in set(self._kept) - self._used:
                del self._kept[old]  # before more is loaded
            self._kept[key] = self._make(table, seed)
        self._used.add(key)
        dataset, federation, resolved = self._kept[key]
        return dataset, federation, copy.deepcopy(resolved)

    def begin(self) -> None:
        """A cell begins: what it does not use makes room."""
        self._used = set()


class Teller(Callback):
    """Tells of each round in this process, and ends the run if it is answered.

    Args:
        cell: which the run is of.
        told: is told; what it raises is not the run's, which stays as it is, to be gone on with.
    """

    def __init__(self, cell: Cell, told: Told) -> None:
        self._cell, self._told = cell, told

    def on_round(self, run: RunView, line: Line) -> None:
        try:
            why = self._told(self._cell, line)
        except PolyfedError as error:
            raise Interrupted(str(error)) from error
        if why is not None:
            run.stop(why)


def broken(study: Path, cell: Cell, error: Exception) -> Outcome:
    """A cell that failed in a way that nobody has a sentence for: the traceback is kept."""
    with suppress(OSError), (study / OUTPUT).open("a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    why = cut(f"{type(error).__name__}: {error}")
    return Outcome(cell, study / cell.name, why=f"{why}; the traceback is in {study / OUTPUT}.")
