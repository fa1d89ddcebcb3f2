"""Engine overhead, scaling over workers, and a million clients: `python benchmarks/core.py`, about a minute.

Ratios are taken within one run, so that the machine's load falls on both sides.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed import Federation, Objective, Problem, Rows
from polyfed.core.door import Door
from polyfed.core.keys import generator
from polyfed.core.layer import Layers
from polyfed.core.messages import Options, Request
from polyfed.engines.local import Local
from polyfed.run.plan import one_part
from polyfed.testing import open_door

BATCH, STEPS = 128, 10


class Two(nn.Module):
    """Twenty outputs for two objectives of ten classes."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.body(x)
        return {"left": out[:, :10], "right": out[:, 10:]}


def mlp() -> nn.Module:
    return Two(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 20)))


def conv() -> nn.Module:
    return Two(
        nn.Sequential(
            nn.Conv2d(1, 10, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 15, 3), nn.MaxPool2d(2),
            nn.ReLU(), nn.Flatten(), nn.Linear(540, 50), nn.ReLU(), nn.Linear(50, 20),
        )
    )  # fmt: skip


def data(shape: tuple[int, ...], clients: int) -> tuple[Tensor, dict[str, Tensor], Federation]:
    x = torch.rand(clients * 1000, *shape)
    y = {name: torch.randint(0, 10, (len(x),)) for name in ("left", "right")}
    return x, y, Federation.from_arrays(x, y, clients=clients)


def by_hand(model: nn.Module, x: Tensor, y: dict[str, Tensor], rows: list[Tensor]) -> None:
    """What anyone would write: for every client, ten steps of SGD from the server's weights, and the mean."""
    start = {name: v.clone() for name, v in model.state_dict().items()}
    total = {name: torch.zeros_like(v) for name, v in start.items()}
    for mine in rows:
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        order = mine[torch.randperm(len(mine))]
        for i in range(STEPS):
            batch = order[(i % 7) * BATCH : (i % 7 + 1) * BATCH]
            optimiser.zero_grad()
            out = model(x[batch])
            loss: Any = sum(F.cross_entropy(out[name], y[name][batch]) / 2 for name in y)
            loss.backward()
            optimiser.step()
        for name, v in model.state_dict().items():
            total[name] += v
    model.load_state_dict({name: v / len(rows) for name, v in total.items()})


def round_of(fleet: Door, problem: Problem) -> Callable[[], object]:
    shared = {**problem.initial(), "omega": torch.tensor([0.5, 0.5])}
    options: Options = {"lr": 0.1, "steps": STEPS, "batch_size": BATCH, "weight": "uniform"}
    return lambda: fleet.sum(range(10), Request("sgd", shared, options=options))


def door(problem: Problem, federation: Federation, workers: int = 1) -> tuple[Local, Door]:
    engine = Local(one_part(problem, federation), Layers(), workers=workers)
    return engine, open_door(problem, federation, engine, cohort=10)


def alternate(one: Callable[[], object], other: Callable[[], object], times: int) -> tuple[float, float]:
    """Median seconds of each, taken in turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(times + 1):
        for run, kept in zip((one, other), seconds, strict=True):
            start = time.perf_counter()
            run()
            kept.append(time.perf_counter() - start)
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])


def overhead(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], limit: float, times: int) -> None:
    x, y, federation = data(shape, 10)
    problem = Problem(make(), [Objective(n, "cross-entropy") for n in y])
    _, fleet = door(problem, federation)
    model, rows = make(), [torch.from_numpy(federation.rows("train", c)) for c in range(10)]
    hand, ours = alternate(lambda: by_hand(model, x, y, rows), round_of(fleet, problem), times)
    print(f"{name:34} by hand {1e3 * hand:8.1f} ms  ours {1e3 * ours:8.1f} ms  {ours / hand:5.2f}  (at most {limit})")


def scaling(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], times: int) -> None:
    _, y, federation = data(shape, 10)
    problem = Problem(make(), [Objective(n, "cross-entropy") for n in y])
    _, alone = door(problem, federation)
    pool, both = door(problem, federation, workers=2)
    one, two = alternate(round_of(alone, problem), round_of(both, problem), times)
    pool.close()
    print(f"{name:34} one     {1e3 * one:8.1f} ms  two  {1e3 * two:8.1f} ms  {one / two:5.2f}  (at least 1.8)")


def many(clients: int, times: int, cohort: int = 10, steps: int = STEPS) -> dict[str, float]:
    """Set-up seconds, megabytes and milliseconds a round with so many clients of 1000 rows each, by reference; and the
    megabytes that the rounds add at their peak. In a process of its own: a peak never falls."""
    x, y = torch.rand(60_000, 64), {name: torch.randint(0, 10, (60_000,)) for name in ("left", "right")}
    problem = Problem(mlp(), [Objective(n, "cross-entropy") for n in y])
    generator(0, "windows")  # what numpy imports at the first draw is not the federation's
    before, start = _peak(), time.perf_counter()
    rng = generator(0, "windows")
    rows = Rows(rng.permutation(len(x)), rng.integers(0, len(x), clients), np.full(clients, 1000))
    _, fleet = door(problem, Federation.from_arrays(x, y, clients=rows))
    setup = time.perf_counter() - start
    made = _peak()
    shared = {**problem.initial(), "omega": torch.tensor([0.5, 0.5])}
    options: Options = {"lr": 0.1, "steps": steps, "batch_size": BATCH, "weight": "uniform"}
    seconds = []
    for t in range(times):
        start = time.perf_counter()
        fleet.begin(t)
        fleet.sum(fleet.cohort(t, size=cohort), Request("sgd", shared, options=options))
        seconds.append(time.perf_counter() - start)
    ms = 1e3 * statistics.median(seconds)
    return {"setup": setup, "mb": made - before, "ms": ms, "rounds_mb": _peak() - made}


def _peak() -> float:
    """Megabytes; not `ru_maxrss`, which a process inherits from the one that started it (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def apart(function: Callable[..., dict[str, float]], *arguments: object) -> dict[str, float]:
    """A function's result from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=15, help="rounds of each kind; the median counts")
    times = parser.parse_args().times
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"10 clients, batch {BATCH}, {STEPS} local steps, one torch thread; milliseconds a round")
    overhead("MLP 64-256-20", mlp, (64,), 1.05, times)
    overhead("convolutions, 28x28", conv, (1, 28, 28), 0.65, max(times // 3, 2))
    scaling("two workers, MLP", mlp, (64,), times)
    scaling("two workers, convolutions", conv, (1, 28, 28), max(times // 3, 2))
    for clients in (100, 1_000_000):
        f = apart(many, clients, times)
        print(f"{clients:>9,} clients: set-up {f['setup']:5.2f} s, {f['mb']:5.1f} MB, {f['ms']:6.1f} ms a round of 10")
    for cohort in (10, 100, 1000, 10_000):
        f = apart(many, 1_000_000, 1, cohort, 1)
        print(f"{cohort:>9,} clients a round, a step each: peak {f['rounds_mb']:5.1f} MB higher, {f['ms']:8.1f} ms")
    seconds = [taken([sys.executable, "-m", "polyfed", "--help"]) for _ in range(5)]
    print(f"polyfed --help                     {min(seconds):.2f} s  (at most 0.3)")


def taken(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
