"""What a round of several models costs beside single-model rounds of the same steps: python benchmarks/many_models.py.

The figures and tables of the paper are `polyfed reproduce many-models`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from polyfed import FedAvg, Federation, MultiModel, Objective, Problem
from polyfed.algorithms.models.multimodel import MultiModelRound
from polyfed.core.clock import Clock
from polyfed.core.door import Door, PartView
from polyfed.core.fleet import Metered
from polyfed.core.layer import Layers
from polyfed.core.part import Part
from polyfed.engines.local import Local
from polyfed.run.loop import open_doors
from polyfed.run.plan import Plan


def network() -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return Problem(model, [Objective("digit", "cross-entropy")])


def overhead(M: int, workers: int, times: int, clients: int = 24) -> None:
    """A round of M models against M single-model rounds of as many clients each, taken in turns."""
    x, y = torch.rand(clients * 200, 64), torch.randint(0, 10, (clients * 200,))
    federation = Federation.from_arrays(x, {"digit": y}, clients=clients)
    method = FedAvg(lr=0.1, local_steps=10, batch_size=32)
    many = MultiModel({f"m{j}": (network(), method) for j in range(M)})
    parts = {name: Part(problem, federation, method) for name, (problem, _) in many.models.items()}
    start = {name: method.init(part.problem) for name, part in parts.items()}
    apart = Local(parts, Layers(), workers=workers)
    alone = {name: single_door(apart, name, clients // M) for name in parts}
    plan = Plan(
        name="cost", title=many.name, engine_name="local", parts=parts, engine=partial(Local, workers=workers),
        rounds=1, seed=0, cohort=clients, schedule=many,
    )  # fmt: skip
    engine = plan.engine(plan.parts, plan.layers)
    doors, pool = open_doors(plan, engine, Metered(engine))
    assert pool is not None
    together = MultiModelRound(plan.methods(), doors, pool)

    def singles(t: int) -> None:
        for name, door in alone.items():
            door.begin(t)
            method.round(t, start[name], door)

    def all_at_once(t: int) -> None:
        for door in doors.values():
            door.begin(t)
        together(t, start)

    one, other = alternate(singles, all_at_once, times)
    together.close()
    engine.close()
    apart.close()
    print(
        f"M = {M:2}, {workers} worker{'s' * (workers > 1)}: {M} single-model rounds {1e3 * one:6.1f} ms, "
        f"one of {M} models {1e3 * other:6.1f} ms, ratio {other / one:.3f} (at most 1.05)",
        flush=True,
    )


def single_door(engine: Local, name: str, cohort: int) -> Door:
    """A door to one model's clients, whose cohort is drawn for it alone."""
    view = PartView(Metered(engine), name, engine.population[name], Clock(0))
    return Door(view, engine.parts[name].problem, cohort=cohort)


def alternate(one: Callable[[int], None], other: Callable[[int], None], times: int) -> tuple[float, float]:
    """Lower quartiles of the seconds each takes, in turns: another process's load falls on both."""
    seconds: list[list[float]] = [[], []]
    for t in range(1, times + 2):
        for run, kept in zip((one, other), seconds, strict=True):
            start = time.perf_counter()
            run(t)
            kept.append(time.perf_counter() - start)
    a, b = (statistics.quantiles(kept[1:], n=4)[0] for kept in seconds)
    return a, b


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    times = parser.parse_args().times
    torch.set_num_threads(1)
    for M, workers in ((4, 1), (12, 1), (4, 2), (12, 2)):
        overhead(M, workers, times)


if __name__ == "__main__":
    main()
