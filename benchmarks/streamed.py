"""Data from files beside the same rows in memory: `python benchmarks/streamed.py [--times 5]`, minutes.

The two-digit experiment (an MLP, batches of 32, ten local steps, FedCMOO, 100 rounds of 10 of 100 clients) on `local`
with one worker and one torch thread. All kinds are trained in turns in one process. The figures are the mean time of a
round, the first reading included, and the processor's time; of several turns the medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed import Federation, Problem, train
from polyfed.algorithms import algorithms
from polyfed.client import kept
from polyfed.core.source import Files, Joined, MemoryMap, Source
from polyfed.data.build import build_data
from polyfed.experiment.building import build_problem

DATA = {"name": "two-digits", "clients": 100, "partition": "dirichlet", "alpha": 0.3}
NOTHING_KEPT = "a file for each row, nothing kept"


def raw(path: Path) -> Any:
    """One image of 8 x 14."""
    return np.fromfile(path, np.float32).reshape(1, 8, 14)


def map_each(federation: Federation, folder: Path) -> Federation:
    """A memory map for each client, and one for the server."""
    x, owned = federation.x.numpy(), [federation.rows("train", c) for c in range(len(federation))]
    assert federation.server is not None
    order = np.concatenate([*owned, federation.server])
    maps: list[Source] = []
    for i, rows in enumerate([*owned, federation.server]):
        np.save(folder / f"client{i:03}.npy", x[rows])
        maps.append(MemoryMap(np.load(folder / f"client{i:03}.npy", mmap_mode="r")))
    back = np.empty(len(x), dtype=np.int64)
    back[order] = np.arange(len(order))
    return replace(federation, x=Joined(maps).select(back))


def kinds(federation: Federation, folder: Path) -> dict[str, Federation]:
    """The same rows from memory, and from files."""
    x = federation.x.numpy()
    np.save(folder / "x.npy", x)
    for i, row in enumerate(x):
        row.tofile(folder / f"{i:06}.raw")
    files = replace(federation, x=Files(folder, raw, "*.raw"))
    return {
        "in memory": federation,
        "one memory map": replace(federation, x=np.load(folder / "x.npy", mmap_mode="r")),
        "a memory map for each client": map_each(federation, folder),
        "a file for each row": files,
        NOTHING_KEPT: files,
    }


def milliseconds(problem: Problem, federation: Federation, rounds: int) -> tuple[float, float]:
    """Of a round: what passed, and what the processor was at work."""
    method = algorithms["fedcmoo"](lr=0.3, server_lr=1.2, local_steps=10, batch_size=32, compress="sketch", width=256)
    with tempfile.TemporaryDirectory() as out:
        begun, worked = time.perf_counter(), time.process_time()
        train(problem, federation, method, rounds=rounds, cohort=10, evaluate={"every": 10_000}, out=f"{out}/run")
        passed, spent = time.perf_counter() - begun, time.process_time() - worked
    return 1e3 * passed / rounds, 1e3 * spent / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset, federation, _ = build_data(dict(DATA), 0)
    problem, _ = build_problem({"name": "mlp", "hidden": [128]}, dataset, 0)
    with tempfile.TemporaryDirectory() as name:
        every = kinds(federation, Path(name))
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in every}
        for _ in range(given.times):
            for kind, data in every.items():
                kept.ROOM = kept.Room(0 if kind == NOTHING_KEPT else kept.MOST)
                found[kind].append(milliseconds(problem, data, 100))
    own = [statistics.median(times) for times in zip(*found["in memory"], strict=True)]
    for kind, pairs in found.items():
        passed, worked = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"{kind:36} {passed:7.1f} ms {passed / own[0]:5.2f}   processor {worked:7.1f} ms {worked / own[1]:5.2f}")


if __name__ == "__main__":
    main()
