"""How far honest clients are from the cohort's median length, for every method, data set and partition here.

`POLYFED_DATA=... python benchmarks/guard.py` trains with the guard off and prints, for each case, the largest ratio of
a length to its exchange's median (of losses without a unit, a thousandth of it): `polyfed.core.guard.FACTOR` must lie
well above all of them. Data sets that are not there are left out; `--data NAME` takes one alone, `--rounds` more,
`--json` a line of JSON a case. `--cost` times rounds with the guard, without it, and with only the check for finite
numbers that there was before, in turns. `--host` times these checks alone, of replies of 10 clients that are ready on
the CPU: what the host does while a GPU waits for it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from polyfed import Federation, Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.core.engine import Engine, engines
from polyfed.core.errors import PolyfedError
from polyfed.core.fleet import Ids, Stack
from polyfed.core.guard import FACTOR, KNOWN, Guard
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.validate import validate_replies
from polyfed.data import Dataset
from polyfed.data.build import build_data
from polyfed.models import models
from polyfed.testing import open_door, small_federation, small_problem

DATA: dict[str, tuple[str, float, dict[str, Any]]] = {  # the model, its step size, and settings of the data
    "two-digits": ("mlp", 0.3, {}),
    "synthetic": ("linear", 0.1, {}),
    "quadratic": ("point", 0.1, {}),
    "multimnist": ("two-digit-net", 0.1, {}),
    "mnist-fmnist": ("mlp", 0.1, {}),
    "cifar10": ("mlp", 0.05, {"subset": True}),
    "fashion-attributes": ("mlp", 0.1, {}),
    "adult": ("linear", 0.1, {}),
    "har": ("mlp", 0.1, {}),
    "census-income": ("linear", 0.1, {}),
    "landmine": ("linear", 0.1, {}),
    "vehicle": ("linear", 0.1, {}),
    "scm20d": ("mlp", 0.01, {}),
    "qm9": ("mlp", 0.01, {}),
    "rf1": ("mlp", 0.01, {}),
    "school": ("linear", 0.005, {}),
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "lognormal": {"partition": "iid", "sizes": "lognormal"},
    "dirichlet 0.1": {"partition": "dirichlet", "alpha": 0.1},
    "labels": {"partition": "labels"},
    "natural": {"partition": "natural"},
    "held by half": {"partition": "iid", "holds": 0.5},
}
LOCAL = {"steps": {"local_steps": 10, "batch_size": 16}, "epochs": {"local_epochs": 3, "batch_size": 16}}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {}, "fedavg-n": {}, "fedprox": {"mu": 0.1}, "fedmgda": {}, "fedmgda+": {}, "mgda-prox": {"mu": 0.1},
    "q-fedavg": {"q": 5.0}, "afl": {}, "fmgda": {}, "fsmgda": {}, "fedcmoo": {}, "fedcmoo-pref": {},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=sorted(DATA), action="append")
    parser.add_argument("--method", choices=sorted(METHODS), action="append")
    parser.add_argument("--partition", choices=sorted(PARTITIONS), action="append")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--engine", default='{"name": "local"}', help="as JSON: where the honest clients work")
    parser.add_argument("--workers", type=int, default=1, help="cases side by side")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if asked.cost:
        for name, clients in (("local", 10), ("batched", 10), ("batched", 100)):
            cost(name, clients)
        return
    if asked.host:
        for method, request in exchanges().items():
            host(method, request)
        return
    chosen = [(data, partition, asked) for data in asked.data or DATA for partition in asked.partition or PARTITIONS]
    if asked.workers > 1:
        with multiprocessing.get_context("fork").Pool(asked.workers) as pool:
            worst = max(pool.imap_unordered(largest, chosen, chunksize=1))
    else:
        worst = max(map(largest, chosen))
    print(f"the largest is {worst:.1f}; the guard drops above {FACTOR:g}")


def largest(case: tuple[str, str, argparse.Namespace]) -> float:
    """Of one federation, by all methods."""
    data, partition, asked = case
    worst = 0.0
    for method, ratio in cases(data, partition, asked):
        worst = max(worst, ratio)
        if asked.json:
            print(json.dumps({"data": data, "partition": partition, "method": method, "ratio": ratio}), flush=True)
    return worst


def cost(name: str, clients: int) -> None:
    """Milliseconds of a sum of local updates: two-digit net, batch 128, 10 steps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * 256, 1, 28, 28)).astype(np.float32)
    targets = {side: rng.integers(0, 10, len(x)) for side in ("left", "right")}
    federation = Federation.from_arrays(x, targets, clients=clients)
    objectives = tuple(Objective(side, "cross-entropy") for side in targets)
    problem = Problem(models["two-digit-net"](Dataset(x, targets, objectives)), objectives)
    request = Request("sgd", {**problem.initial(), "omega": torch.ones(2)},
                      options={"lr": 0.1, "steps": 10, "batch_size": 128})  # fmt: skip
    sides: dict[str, Engine] = {
        how: engines[name]({"": Part(problem, federation)}, Layers(guard=how == "on"))
        for how in ("before", "off", "on")
    }
    sides["before"].ask = partial(only_finite, sides["before"])  # type: ignore[method-assign]
    doors = {how: open_door(problem, federation, engine) for how, engine in sides.items()}
    times: dict[str, list[float]] = {how: [] for how in sides}
    for t in range(4 if name == "local" else 203):
        for how, door in doors.items():
            door.begin(t + 1)
            start = time.perf_counter()
            door.sum(range(clients), request)
            times[how].append(1000 * (time.perf_counter() - start))
    words = ", ".join(f"{how} {statistics.median(taken[3:]):.3f}" for how, taken in times.items())
    print(f"{name}, {clients} clients: {words} ms", flush=True)
    for engine in sides.values():
        engine.close()


def only_finite(engine: Engine, clients: Ids, request: Request) -> Iterator[Stack]:
    """The replies as they were checked before there was a guard."""
    schema = engine.schema(request)
    return (validate_replies(stack, schema) for stack in engine.replies(clients, request))


def exchanges() -> dict[str, Request]:
    """One sum of local updates, or of sketched Jacobians, as each method asks for it."""
    problem = small_problem()
    model, omega = problem.initial(), {"omega": torch.ones(2, dtype=problem.dtype)}
    how: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": 4}
    sketch = {**how, "compress": {"name": "sketch"}, "rows": 2, "columns": problem.dim}
    return {
        "fedavg": Request("sgd", {**model, **omega}, options=how, weighed=True),
        "fedavg, by size": Request("sgd", {**model, **omega}, options={**how, "weight": "size"}, weighed=True),
        "fsmgda": Request("sgd-each", model, options=how, weighed=True),
        "fedcmoo": Request("jacobian", model, options=sketch, weighed=True),
    }


class Ready(Engine):
    """An engine whose clients have answered before they are asked."""

    ready: Stack

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        yield self.ready


def host(method: str, request: Request, repeats: int = 20, rounds: int = 200) -> None:
    """Microseconds of processor time of an exchange: the least of many repeats, the sides in turns."""
    problem, federation = small_problem(), small_federation(sizes=range(10, 20), partial=False)
    parts, clients = {"": Part(problem, federation)}, list(range(10))
    asked = replace(request, folded=torch.full((10,), -1))
    one = list(engines["local"](parts, Layers()).replies(clients, asked))
    assert not any(s.failed for s in one)
    stack = Stack(clients, {name: torch.cat([s[name] for s in one]) for name in one[0].arrays})
    sides = {how: Ready(parts, Layers(guard=how == "on")) for how in ("before", "off", "on")}
    sides["before"].ask = partial(only_finite, sides["before"])  # type: ignore[method-assign]
    least = dict.fromkeys(sides, float("inf"))
    for _ in range(repeats):
        for how, engine in sides.items():
            engine.ready = stack
            start = time.process_time()
            for t in range(rounds):  # a method makes its options anew in each
                list(engine.ask(clients, replace(asked, options=dict(asked.options), round=t + 1)))
            least[how] = min(least[how], 1e6 * (time.process_time() - start) / rounds)
    words = ", ".join(f"{how} {taken:.0f}" for how, taken in least.items())
    print(f"{method}: {words} microseconds", flush=True)


def cases(data: str, partition: str, asked: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Every method on one federation; nothing where the data does not go with the partition, or is not there."""
    model, lr, settings = DATA[data]
    try:
        many: dict[str, Any] = {} if partition == "natural" else {"clients": asked.clients}
        if partition == "labels":  # two digits have a hundred labels together
            many["labels_per_client"] = 4 if data in ("two-digits", "multimnist", "mnist-fmnist") else 1
        dataset, federation, _ = build_data({"name": data, **many, **settings, **PARTITIONS[partition]}, seed=0)
    except PolyfedError as error:
        print(f"{data}, {partition}: left out ({str(error)[:100]})")
        return
    torch.manual_seed(0)
    dtype = torch.float64 if data == "quadratic" else torch.float32
    problem = Problem(models[model](dataset), dataset.objectives, dtype)
    start, row = time.perf_counter(), dict[str, float]()
    for method in asked.method or METHODS:
        for kind, local in LOCAL.items():
            if kind == "epochs" and (method == "afl" or federation.examples.max() > 3000):
                continue
            found = ratio_of(problem, federation, method, lr, local, asked)
            row[method] = max(found, row.get(method, 0.0))
            yield f"{method} {kind}", found
    words = ", ".join(f"{method} {ratio:.1f}" for method, ratio in row.items())
    print(f"{data}, {partition}: {words} ({time.perf_counter() - start:.0f} s)", flush=True)


def ratio_of(
    problem: Problem, federation: Any, method: str, lr: float, local: dict[str, Any], asked: argparse.Namespace
) -> float:
    """The largest ratio of a length to its exchange's median, of all clients and rounds."""
    guards: list[Guard] = []

    def note(self: Engine, request: Request, guard: Guard) -> None:
        guards.append(guard)

    how = {"batch_size": 16} if method == "afl" else {"local_steps": 10} if method == "fmgda" else local
    kept, Engine.note_medians = Engine.note_medians, note  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(
                problem, federation, algorithms[method](lr=lr, **how, **METHODS[method]), rounds=asked.rounds,
                cohort="all", guard="off", evaluate={"every": asked.rounds}, out=f"{folder}/run",
                engine=json.loads(asked.engine),
            )  # fmt: skip
    except PolyfedError as error:
        print(f"  {method}: {str(error)[:150]}")
    finally:
        Engine.note_medians = kept  # type: ignore[method-assign]
    return max((ratio for guard in guards for ratio in guard.farthest(KNOWN, compared=True).values()), default=0.0)


if __name__ == "__main__":
    main()
