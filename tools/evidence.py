"""Cells of many items by one pool of processes, the most telling first: `python tools/evidence.py ITEM... --minutes 9`.

`polyfed reproduce` runs one grid after another, and workers wait at the end of each. Here all cells are one list:
those of the first three seeds, which allow a test, item by item as named; then the others. Cells that the package has a
record of are left out. What is finished is packed: `polyfed reproduce --merge PACK`, then
`python tools/results.py --take=runs/reproduce`.

Processes on a GPU (`--jobs`) and others on cores alone (`--cores`) take from two lists; ITEM+ goes to the second. Where
NVIDIA's MPS is there, it runs meanwhile: without it processes take turns, and whoever waits for numbers waits for all.
ITEM:GRID is one grid of an item; with `--claimed` only rows that some claim compares are run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a look for a GPU that does not begin CUDA

import torch

from polyfed.core.errors import Interrupted
from polyfed.reproduce.driving import Driver, _compute, driven_cells, driver_of, file_of
from polyfed.reproduce.grids import cells_of, missing_of
from polyfed.reproduce.item import Claim, Grid, Item, chosen
from polyfed.reproduce.packing import write_pack
from polyfed.reproduce.record import FILE, known, note_failure, place_of
from polyfed.reproduce.running import How, _borrow, _sign, collect, folder_of
from polyfed.study.running import DataOnce, Teller, broken, run_cell

TESTED = 3  # seeds that allow a test
Where = tuple[str, str]  # an item and a grid


class One(NamedTuple):
    """A cell in its place."""

    item: Item
    grid: Grid
    cell: Any

    @property
    def where(self) -> Where:
        return self.item.key, self.grid.name


def listed(names: list[str], out: Path, seeds: int, claimed: bool) -> list[One]:
    """The cells that are to be run, those of few seeds first."""
    found = []
    for name, _, grid in (name.partition(":") for name in names):
        of = [one for item in chosen(name) for one in missing_cells(item, out)]
        found += [one for one in of if one.cell.seed < seeds and one.grid.name == (grid or one.grid.name)]
    if claimed:
        found = [one for one in found if any(compares(claim, one) for claim in one.item.claims)]
    return sorted(found, key=lambda one: one.cell.seed >= TESTED)  # stable


def compares(claim: Claim, one: One) -> bool:
    """Whether a claim is about a cell's row; a claim names rows of all its grids, or 'grid / row'."""
    named = {claim.row, *claim.than, *claim.rows}
    of_grid = one.grid.name in (claim.grids or [one.grid.name])
    return (of_grid and one.cell.row in named) or f"{one.grid.name} / {one.cell.row}" in named


def missing_cells(item: Item, out: Path) -> Iterator[One]:
    """An item's cells that nobody has run, seed by seed where they are runs; those that diverge would again."""
    whole = [record for record in known(item) if record.mode == "full"]
    have = {place_of(cell) for record in whole for cell in record.cells}
    have |= {place_of(one) for record in whole for one in record.failed if one.diverged}
    for grid in item.grids:
        if missing_of(item, grid, False):
            continue
        if grid.driver:  # row by row: a row computes what the others of its seed share
            every: Sequence[Any] = driven_cells(item, grid, False)
        else:
            every = sorted(cells_of(item, grid, False).cells, key=lambda cell: cell.seed)
        place = folder_of(item, How(out=out)) / grid.name
        for cell in every:
            done = file_of(place, cell).is_file() if grid.driver else (place / cell.name / "result.json").is_file()
            if not done and (grid.name, cell.row, cell.seed) not in have:
                yield One(item, grid, cell)


class Runner:
    """Runs cells in one process.

    Args:
        out: the folder of all items.
        until: when all runs end after their rounds.
        drivers: of items and grids that are not runs, by their names.
        engine: changes to every experiment's engine.
        compiled_from: steps of shorter runs are not compiled: torch traces them anew in each run, which takes seconds.
    """

    def __init__(
        self, out: Path, until: float, drivers: Mapping[Where, Driver], engine: dict[str, Any], compiled_from: int = 0
    ) -> None:
        self.out, self.until, self.engine, self.load = out, until, engine, DataOnce()
        self.drivers, self.compiled_from = drivers, compiled_from

    def __call__(self, one: One) -> str:
        """A cell; or why there is none."""
        place = folder_of(one.item, How(out=self.out)) / one.grid.name
        place.mkdir(parents=True, exist_ok=True)
        if one.grid.driver:
            why = _compute(self.drivers[one.where], one.cell, place)
            _sign([file_of(place, one.cell)])
            return why
        _borrow([one.cell], place, self.out / one.item.paper)
        if not (place / one.cell.name / "result.json").is_file():
            engine = {**one.cell.settings["engine"], **self.engine}
            if engine["name"] == "batched" and one.cell.settings["rounds"] < self.compiled_from:
                engine["compile"] = False
            one.cell.settings["engine"] = engine
            self.load.begin()
            name = f"{one.item.paper}-{one.item.name}"
            found = run_cell(place, name, one.cell, load=self.load, callbacks=[Teller(one.cell, self.told)])
            if found.summary is None:
                return found.why
        _sign([place / one.cell.name], "TF32" if self.engine.get("tf32") else "")
        return ""

    def told(self, cell: Any, line: Any) -> None:
        if time.monotonic() >= self.until:
            raise Interrupted("Time is over.")


def work(cells: list[One], taken: Any, runner: Runner, log: Path, gpu: bool) -> None:
    """A process takes cells, one after another."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    torch.set_num_threads(1)
    if not gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    while time.monotonic() < runner.until - 5:
        with taken.get_lock():
            at, taken.value = taken.value, taken.value + 1
        if at >= len(cells):
            return
        one, start = cells[at], time.perf_counter()
        try:
            why = runner(one)
        except (Interrupted, KeyboardInterrupt):
            return
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            broken(log.parent, one.cell, error) if not one.grid.driver else traceback.print_exc()
        if why:
            note_failure(folder_of(one.item, How(out=runner.out)) / one.grid.name / one.cell.name, why)
        said = {"at": f"{one.item.key}/{one.grid.name}", "row": one.cell.row, "seed": one.cell.seed, "why": why[:200]}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**said, "s": round(time.perf_counter() - start, 1), "gpu": gpu}) + "\n")


@contextmanager
def shared(jobs: int) -> Iterator[None]:
    """Inside, the processes of a GPU share it, where the machine has what that takes."""
    daemon = shutil.which("nvidia-cuda-mps-control") if jobs > 1 else None
    # no pipes, which a daemon might hold
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if daemon is None or subprocess.run([daemon, "-d"], **silent).returncode:
        yield
        return
    try:
        yield
    finally:
        subprocess.run([daemon], input="quit -t 5\n", text=True, **silent)


def main() -> None:
    """Run, pack, say how much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="+")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--jobs", type=int, default=0, help="processes on the GPU")
    parser.add_argument("--cores", type=int, default=0, help="processes on cores alone")
    parser.add_argument("--seeds", type=int, default=100, help="only so many of the first")
    parser.add_argument("--claimed", action="store_true", help="only rows that some claim compares")
    parser.add_argument("--engine", default="{}", help="more settings of the engine, as JSON")
    parser.add_argument("--compiled-from", type=int, default=0, help="rounds from which on steps are compiled")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--pack", type=Path)
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes
    fork = multiprocessing.get_context("fork")
    asked.out.mkdir(parents=True, exist_ok=True)
    slow = [name.rstrip("+") for name in asked.items if name.endswith("+")]
    fast = [name for name in asked.items if not name.endswith("+")]
    which = asked.out, asked.seeds, asked.claimed
    lists = [(listed(fast, *which), asked.jobs), (listed(slow, *which), asked.cores)]
    print(*(f"{len(cells)} cells for {jobs} processes" for cells, jobs in lists), sep="; ", flush=True)
    # drivers before the processes begin, which then have one polyfed.reproduce.sharing for what rows share
    driven = {one.where: one for cells, _ in lists for one in cells if one.grid.driver}
    drivers = {where: driver_of(one.item, one.grid) for where, one in driven.items()}
    log, busy = asked.out / "cells.jsonl", []
    with shared(asked.jobs):
        for (cells, jobs), gpu in zip(lists, (True, False), strict=True):
            taken = fork.Value("i", 0)
            for _ in range(min(jobs, len(cells))):
                runner = Runner(
                    asked.out, until, drivers, *((json.loads(asked.engine), asked.compiled_from) if gpu else ({},))
                )
                busy.append(fork.Process(target=work, args=(cells, taken, runner, log, gpu)))
                busy[-1].start()
        for process in busy:
            process.join(max(0.1, until + 4 - time.monotonic()))  # a driver's cell cannot be ended after a round
        for process in busy:
            if process.is_alive():
                process.kill()
    items = {item.key: item for name in (*fast, *slow) for item in chosen(name.partition(":")[0])}
    for item in items.values():
        how = How(out=asked.out)
        if (place := folder_of(item, how)).is_dir():
            collect(item, how).write(place / FILE)
    if asked.pack:
        print(f"pack: {write_pack(asked.out, asked.pack)}", file=sys.stderr)


if __name__ == "__main__":
    main()
