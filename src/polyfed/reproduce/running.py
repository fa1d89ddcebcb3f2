"""An item is run: its grids through `polyfed.study`, its record written, also of what there is when time is over."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyfed import __version__
from polyfed.core.errors import BadInput, Interrupted
from polyfed.reproduce.driving import Driven, code_notes, drive, driven_cells, driver_of, file_of
from polyfed.reproduce.grids import cells_of, missing_of, rows_of
from polyfed.reproduce.item import Draw, Grid, Item
from polyfed.reproduce.measuring import points_of, value_of
from polyfed.reproduce.record import (
    FILE,
    POINTS,
    Curve,
    Failed,
    Figures,
    Made,
    Record,
    failure,
    failure_of,
    mean_curve,
    note_failure,
    read_record,
)
from polyfed.run.directory import RunDirectory, write
from polyfed.study.cells import Cell, read_study
from polyfed.study.compare import compare_grid
from polyfed.study.runner import default_jobs

MADE = "made.json"  # in a cell's directory, or beside a driver's file: where and when it was run


@dataclass(frozen=True)
class How:
    """How items are run.

    Args:
        quick: whether the smaller versions.
        out: the folder of all items.
        jobs: how many processes; None for as many as there are cores, on a GPU one.
        until: the moment, as `time.monotonic` has it, when time is over.
        changes: KEY=VALUE texts over every experiment.
        progress: whether progress is shown on stderr.
    """

    quick: bool = False
    out: Path = Path("runs/reproduce")
    jobs: int | None = None
    until: float = math.inf
    changes: Sequence[str] = ()
    progress: bool = False

    @property
    def mode(self) -> str:
        """'quick' or 'full'."""
        return "quick" if self.quick else "full"


def folder_of(item: Item, how: How) -> Path:
    """Where an item's cells and its record are."""
    return how.out / item.paper / f"{item.name}{'-quick' * how.quick}"


def run_item(item: Item, how: How) -> Record:
    """Run what is missing of an item, and write its record; `Interrupted`, after that, where time is over.

    Grids whose data are not here are left out; `BadInput` where that is all.

    Args:
        item: which.
        how: how.
    """
    grids = _with_data(item, how)
    if how.changes and (computed := [grid.name for grid in item.grids if grid.driver]):
        print(f"{item.key}: --set does not change what functions compute: {', '.join(computed)}.", file=sys.stderr)
    try:
        for grid in grids:
            _run_grid(item, grid, how)
    finally:
        found = collect(item, how)
        found.write(folder_of(item, how) / FILE)
    return found


def _with_data(item: Item, how: How) -> list[Grid]:
    """The grids that can be run."""
    asked = [grid for grid in item.grids if rows_of(grid, how.quick)]
    missing = {grid.name: missing_of(item, grid, how.quick) for grid in asked}
    found = [grid for grid in asked if not missing[grid.name]]
    for grid in asked:
        for name in missing[grid.name][:1]:
            why = f"the data set {name!r}, which is not here: 'polyfed data' says how to get it."
            if not found:
                raise BadInput(f"{item.key} needs {why}")
            print(f"{item.key}: '{grid.title or grid.name}' is left out, as it needs {why}", file=sys.stderr)
    return found


def _run_grid(item: Item, grid: Grid, how: How) -> None:
    out = folder_of(item, how) / grid.name
    if grid.driver:
        every = driven_cells(item, grid, how.quick)
        if not every:
            return
        for said in code_notes(out, every):
            print(said, file=sys.stderr)
        jobs = _jobs(how) or default_jobs([{"engine": "auto"}], len(every))
        try:
            drive(driver_of(item, grid), every, out, jobs, how.until)
        finally:
            _sign(file_of(out, cell) for cell in every)
        return
    cells = cells_of(item, grid, how.quick, how.changes)
    if not cells.cells:
        return
    _borrow(cells.cells, out, how.out / item.paper)
    name = f"{item.paper}-{item.name}"
    try:
        compare_grid(cells, name=name, out=out, jobs=_jobs(how), until=how.until, progress=how.progress)
    finally:
        for one in (read_study(out) or {"cells": []})["cells"]:  # also where time was over
            if one["state"] == "failed":
                note_failure(out / one["run"], one["why"])
        _sign(out / cell.name for cell in cells.cells)


def _jobs(how: How) -> int | None:
    """As asked; 1 once this process has begun CUDA, which none of its children could use."""
    begun: Callable[[], bool] = torch.cuda.is_initialized
    return 1 if begun() else how.jobs


def _borrow(cells: Iterable[Cell], out: Path, paper: Path) -> None:
    """Take finished cells with the same settings from the paper's other items: figures often share runs."""
    for cell in cells:
        if (out / cell.name / "result.json").is_file():
            continue
        mark = cell.name.rpartition("-")[2]
        same = next((one.parent for one in sorted(paper.glob(f"*/*/*-seed{cell.seed}-{mark}/result.json"))), None)
        if same is not None and (same / MADE).is_file():
            part = paper / f".{out.parent.name}-{out.name}-{cell.name}"  # where nobody looks, should this process end
            for past in (part, out / cell.name):
                shutil.rmtree(past, ignore_errors=True)
            shutil.copytree(same, part, ignore=shutil.ignore_patterns("checkpoints", ".lock"))
            out.mkdir(parents=True, exist_ok=True)
            part.rename(out / cell.name)


# where and when


def _sign(paths: Iterable[Path], how: str = "") -> None:
    """Write beside what is finished where and when that was, once; `how`: more words about the machine."""
    for path in paths:
        done = path.is_file() or (path / "result.json").is_file()
        if done and not signature(path).is_file():
            write(signature(path), json.dumps(_here(how)).encode() + b"\n")
        if done:
            failure_of(path).unlink(missing_ok=True)


def signature(path: Path) -> Path:
    """The file that says where and when a cell was run: in its directory, or beside a driver's file."""
    return path / MADE if path.is_dir() else path.with_suffix(f".{MADE}")


def _here(how: str = "") -> dict[str, Any]:
    return {
        "machine": ", ".join(filter(None, [machine(), how])),
        "date": time.strftime("%Y-%m-%d"),
        "version": __version__,
    }


def machine() -> str:
    """The machine in words, without its name: 'one NVIDIA H200' or '2 cores'; a GPU that is hidden is none."""
    try:  # not by torch: a process that has begun CUDA has no children that may use it
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        gpus = [] if hidden else [line.strip() for line in told.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError):
        gpus = []
    if gpus:
        return f"one {gpus[0]}" if len(gpus) == 1 else f"{len(gpus)} {gpus[0]}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{cores} core{'s' * (cores > 1)}"


# what there is


def collect(item: Item, how: How) -> Record:
    """The record of what is finished in an item's folder, and of what failed.

    Args:
        item: which.
        how: how it was run.
    """
    changes = [] if all(grid.driver for grid in item.grids) else list(how.changes)  # no driver knows them
    record = Record(item.paper, item.name, how.mode, 0, changes=changes)
    made: dict[tuple[str, str, str], int] = {}
    for grid in item.grids:
        out = folder_of(item, how) / grid.name
        curves: dict[tuple[str, str, str, str], list[Any]] = {}
        for cell, path in _cells(item, grid, how, out):
            record.wanted += 1
            try:
                found = _figures(item, grid, cell, path, how.quick)
            except BadInput as error:  # of this run alone: the others' figures are worth as much
                record.failed.append(Failed(grid.name, cell.row, cell.seed, str(error)))
                continue
            if found is None:
                if (why := failure(path)) is not None:
                    record.failed.append(Failed(grid.name, cell.row, cell.seed, why))
                continue
            figures, drawn = found
            record.cells.append(figures)
            told = _told(signature(path))
            made[told] = made.get(told, 0) + 1
            for key, curve in drawn.items():
                curves.setdefault((figures.row, *key), []).append(curve)
        for (row, of, split, clock), runs in curves.items():
            if (mean := mean_curve(runs, POINTS[how.mode])) is not None:
                record.curves.append(Curve(grid.name, row, of, split, clock, *mean, runs=len(runs)))
    record.made = [Made(*key, cells=n) for key, n in made.items()]
    return record


Drawn = dict[tuple[str, str, str], tuple[list[float], list[float]]]  # by path, split and clock


def _cells(item: Item, grid: Grid, how: How, out: Path) -> Iterator[tuple[Cell | Driven, Path]]:
    """The cells of a grid, and where each is."""
    if grid.driver:
        yield from ((cell, file_of(out, cell)) for cell in driven_cells(item, grid, how.quick))
    else:
        yield from ((cell, out / cell.name) for cell in cells_of(item, grid, how.quick, how.changes).cells)


def _figures(item: Item, grid: Grid, cell: Cell | Driven, path: Path, quick: bool) -> tuple[Figures, Drawn] | None:
    """What a cell has come to; None where it is not finished."""
    if isinstance(cell, Driven):
        return _of_driver(item, grid, cell, path) if path.is_file() else None
    return _of_run(item, grid, cell, path, quick) if (path / "result.json").is_file() else None


def _of_run(item: Item, grid: Grid, cell: Cell, path: Path, quick: bool) -> tuple[Figures, Drawn]:
    run = RunDirectory.open(path)
    lines, summary = run.history(), run.result() or {}
    values = {measure.name: value_of(measure, lines, quick) for measure in item.measures if measure.of}
    drawn: Drawn = {}
    for draw in _curves(item, grid):
        for of in draw.of:
            points = list(points_of(of, draw.split, _better(item, of), lines))
            drawn[of, draw.split, draw.x] = ([p.spent[draw.x] for p in points], [p.value for p in points])
    took = {key: summary.get(key) for key in ("rounds", "bytes_up", "seconds")}
    return Figures(grid.name, cell.row, cell.seed, values, **took), drawn


def _of_driver(item: Item, grid: Grid, cell: Driven, path: Path) -> tuple[Figures, Drawn]:
    found = json.loads(path.read_text(encoding="utf-8"))
    values = {measure.name: found["values"].get(measure.name) for measure in item.measures}
    drawn: Drawn = {}
    for draw in _curves(item, grid):
        for of in draw.of:
            if of in found.get("curves", {}):
                curve = found["curves"][of]
                drawn[of, draw.split, draw.x] = (curve["x"][draw.x], curve["y"])
    took = {key: found.get(key) for key in ("rounds", "bytes_up", "seconds")}
    return Figures(grid.name, cell.row, cell.seed, values, **took), drawn


def _better(item: Item, of: str) -> str:
    """Which way is better, as a measure of the same metric says: it decides which objective is the worst."""
    metric = of.rpartition(".")[2]
    return next((one.better for one in item.measures if one.of.rpartition(".")[2] == metric), "lower")


def _curves(item: Item, grid: Grid) -> list[Draw]:
    return [draw for draw in item.draw if draw.kind == "curves" and (not draw.grids or grid.name in draw.grids)]


def _told(path: Path) -> tuple[str, str, str]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return str(told["machine"]), str(told["date"]), str(told["version"])
    except (OSError, ValueError, KeyError):
        return "unknown", "unknown", "unknown"


def time_left(how: How) -> bool:
    """Whether another item may begin."""
    return time.monotonic() < how.until


def run_items(some: Sequence[Item], how: How) -> tuple[list[Record], list[str], bool]:
    """Run items one after the other: their records, what could not be run, and whether time was over.

    Args:
        some: the items.
        how: how.
    """
    records: list[Record] = []
    said: list[str] = []
    for item in some:
        try:
            records.append(run_item(item, how))
        except Interrupted:
            if time_left(how):  # a person's
                raise
            records.append(read_record(folder_of(item, how) / FILE))
            return records, said, True
        except BadInput as error:
            if len(some) == 1:
                raise
            said.append(str(error) if str(error).startswith(item.key) else f"{item.key}: {error}")
            print(said[-1], file=sys.stderr)
    return records, said, False
