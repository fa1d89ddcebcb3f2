"""Cells that a function computes, where a file cannot say them: kept one by one, so that a call goes on from them.

A driver is a function of papers/PAPER/ITEM.py, driver(settings, seed) -> {'values': {measure: number}, 'curves':
{path: {'x': {clock: [number, ...]}, 'y': [number, ...]}}}; curves may be left out. What it gives is the file
GRID/LABEL-seedN-SETTINGS-CODE.json, where both are checksums, so that cells of other code are not mixed with those of
this one. Files from before had no CODE: they are taken, and said to be.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from polyfed.core.errors import BadInput, Interrupted, PolyfedError, cut
from polyfed.core.settings import Settings
from polyfed.reproduce.grids import driven, rows_of, seeds_of
from polyfed.reproduce.item import Grid, Item, paper_folder
from polyfed.reproduce.record import note_failure
from polyfed.reproduce.sources import code_of
from polyfed.run.directory import write
from polyfed.study.runner import AGAIN

Driver = Callable[[Settings, int], Mapping[str, Any]]


@dataclass(frozen=True)
class Driven:
    """A cell of a driver: row, seed, what the driver gets, and the name of its file; before: without the code's."""

    row: str
    seed: int
    settings: Settings
    name: str
    before: str


def driven_cells(item: Item, grid: Grid, quick: bool) -> list[Driven]:
    """All cells of a grid that a driver computes."""
    found, code = [], code_of(item)
    for row in rows_of(grid, quick):
        for seed in seeds_of(item, grid, quick):
            settings = driven(item, grid, row, quick)
            text = json.dumps([grid.driver, settings, seed], sort_keys=True, default=str)
            words = re.sub(r"[^\w.+-]+", "-", row.label).strip("-._")[:80] or "cell"
            name = f"{words}-seed{seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
            found.append(Driven(row.label, seed, settings, f"{name}-{code}.json", f"{name}.json"))
    return found


def file_of(out: Path, cell: Driven) -> Path:
    """A cell's file in the grid's folder; one from before, whose name has no code, where there is no other."""
    now, before = out / cell.name, out / cell.before
    return before if before.is_file() and not now.is_file() else now


def code_notes(out: Path, cells: Iterable[Driven]) -> list[str]:
    """Sentences about cells in a folder that other code may have computed, or has."""
    some = [cell for cell in cells if not (out / cell.name).is_file()]
    before = sum((out / cell.before).is_file() for cell in some)
    other = sum(any(out.glob(f"{Path(cell.before).stem}-{'[0-9a-f]' * 8}.json")) for cell in some)
    said = [
        (before, "from before names had the driver code's checksum: taken as they are. Delete them if it changed."),
        (other, "of other code than the driver has now: they do not count."),
    ]
    return [f"{out}: {n} cell{'s' * (n != 1)} {words}" for n, words in said if n]


def driver_of(item: Item, grid: Grid) -> Driver:
    """The function that a grid names."""
    path = paper_folder(item.paper) / f"{item.name}.py"
    spec = importlib.util.spec_from_file_location(f"polyfed_reproduce_{item.paper}_{item.name}".replace("-", "_"), path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadInput(f"{item.key} names the driver {grid.driver!r}; there is no {item.name}.py beside it.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # classes of it look for their module
    spec.loader.exec_module(module)
    found: Driver | None = getattr(module, grid.driver, None)
    if found is None:
        raise BadInput(f"{item.name}.py of {item.paper} has no function {grid.driver!r}.")
    return found


def drive(driver: Driver, cells: Iterable[Driven], out: Path, jobs: int, until: float) -> None:
    """Compute the cells that are missing, and note why some failed. `Interrupted` where time is over.

    Args:
        driver: the function.
        cells: all of them.
        out: the grid's folder.
        jobs: how many processes; 1 is this one.
        until: the moment, as `time.monotonic` has it, when what is not finished is given up.
    """
    out.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not file_of(out, cell).is_file()]
    apart = jobs > 1 and "fork" in multiprocessing.get_all_start_methods()  # also one cell: it may begin CUDA
    if apart:
        _apart(driver, missing, out, jobs, until)
    else:
        _here(driver, missing, out, until)


def _here(driver: Driver, missing: list[Driven], out: Path, until: float) -> None:
    for cell in missing:
        _check_time(until)
        if why := _compute(driver, cell, out):
            note_failure(out / cell.name, why)


def _compute(driver: Driver, cell: Driven, out: Path) -> str:
    """Write a cell's file; or why there is none."""
    start = time.perf_counter()
    try:
        found = dict(driver(cell.settings, cell.seed))
    except PolyfedError as error:
        if isinstance(error, Interrupted):
            raise
        return str(error)
    except Exception as error:
        with (out / "output.log").open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        return cut(f"{type(error).__name__}: {error}; the traceback is in {out / 'output.log'}.")
    found["seconds"] = time.perf_counter() - start
    write(out / cell.name, json.dumps(found).encode() + b"\n")
    print(f"{cell.row}, seed {cell.seed}: {found['seconds']:.1f} s", file=sys.stderr)
    return ""


def _apart(driver: Driver, missing: list[Driven], out: Path, jobs: int, until: float) -> None:
    """A process for each cell, some at a time; those that are under way when time is over are given up."""
    fork = multiprocessing.get_context("fork")
    waiting = list(missing)
    busy: dict[Any, tuple[Driven, Any]] = {}  # by the pipe to a process
    try:
        while waiting or busy:
            _check_time(until)
            while waiting and len(busy) < jobs:
                cell = waiting.pop(0)
                ours, theirs = fork.Pipe(duplex=False)
                process = fork.Process(target=_child, args=(driver, cell, out, theirs), daemon=True)
                process.start()
                theirs.close()
                busy[ours] = (cell, process)
            for pipe in wait(list(busy), 0.2):
                cell, process = busy.pop(pipe)
                why = _said(pipe)
                process.join()
                if why:
                    note_failure(out / cell.name, why)
    finally:
        for _, process in busy.values():
            process.terminate()
            process.join()


def _child(driver: Driver, cell: Driven, out: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    pipe.send(_compute(driver, cell, out))


def _said(pipe: Any) -> str:
    try:
        return str(pipe.recv())
    except EOFError:
        return "The process that computed it ended; out of memory?"


def _check_time(until: float) -> None:
    if time.monotonic() >= until:
        raise Interrupted(f"Stopped; {AGAIN}.")
