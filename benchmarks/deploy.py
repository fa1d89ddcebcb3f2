"""What a deployment costs: the in-process Grid, Ray's workers, and Flower's SuperLink and SuperNodes.

    python benchmarks/deploy.py grid     # ms a round that the Grid adds to `local`, 10 clients
    python benchmarks/deploy.py ray      # how much faster two workers are than one, after start-up
    python benchmarks/deploy.py flower   # s an exchange on loopback, beside Flower's own floor in the same run

Ratios are taken within one run; the machine's load is printed beside them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from polyfed import FedAvg, Federation, Objective, Problem, train

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deploy"))  # loopback.py starts and stops processes


def seconds(engine: Any, problem: Problem, federation: Federation, rounds: int, **settings: Any) -> float:
    """The median round; the first is left out, and so is the last, which is evaluated."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            problem, federation, FedAvg(**settings), rounds=rounds, engine=engine, out=f"{folder}/run",
            evaluate={"every": rounds},
        )  # fmt: skip
        return median(float(line["seconds"]) for line in result.history[1:-1])


def network(clients: int, features: int, hidden: int, rows: int) -> tuple[Problem, Federation]:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    x = rng.normal(size=(clients * rows, features)).astype(np.float32)
    y = {"digit": rng.integers(0, 10, len(x))}
    return Problem(model, [Objective("digit", "cross-entropy")]), Federation.from_arrays(x, y, clients=clients)


def grid() -> dict[str, float]:
    """34.5k parameters and 10 clients, next to no work; processor time, as all of it is in this process."""
    parts = network(10, 64, 460, 20)
    for engine in ("local", "flower"):
        _ms_a_round(engine, *parts, few=3, many=4)  # imports and first times
    local, over = (min(_ms_a_round(engine, *parts) for _ in range(3)) for engine in ("local", "flower"))
    return {"local_ms": local, "grid_ms": over, "overhead_ms": over - local}


def _ms_a_round(engine: str, problem: Problem, federation: Federation, few: int = 5, many: int = 45) -> float:
    used = []
    for rounds in (few, many):
        start = time.process_time()
        seconds(engine, problem, federation, rounds, local_steps=1, batch_size=4)
        used.append(time.process_time() - start)
    return 1e3 * (used[1] - used[0]) / (many - few)


def ray() -> dict[str, float]:
    """Rounds that are mostly work: 16 clients, 40 steps each on a network of 137k parameters."""
    parts = network(16, 256, 512, 200)
    workers = ({"name": "ray", "workers": n} for n in (1, 2))
    one, two = (seconds(engine, *parts, rounds=8, local_steps=40, batch_size=64) for engine in workers)
    return {"one_s": one, "two_s": two, "speed_up": one / two}


def flower(rounds: int = 7) -> dict[str, float]:
    """The same bytes to and from three nodes: an app that only echoes them, and ours."""
    from loopback import loopback

    with tempfile.TemporaryDirectory() as name, loopback(Path(name)) as made:
        made.superlink()
        for i in range(3):
            data = _rows(Path(name) / f"{i}.npz", i)
            made.supernode(i, f'name="{i}" data="{data}" state="{name}/state-{i}"')
        before = _floor(made, Path(name), rounds, "before")
        ours = _ours(made, Path(name), rounds)
        floor = [*before, *_floor(made, Path(name), rounds, "after")]
    return {"floor_s": median(floor), "ours_s": median(ours), "ratio": median(ours) / median(floor)}


def _rows(path: Path, i: int) -> Path:
    rng = np.random.default_rng(i)
    np.savez(path, x=rng.normal(size=(20, 64)).astype(np.float32), digit=rng.integers(0, 10, 20))
    return path


def _floor(made: Any, folder: Path, rounds: int, when: str) -> list[float]:
    app = folder / "floor"
    (app / "echo").mkdir(parents=True, exist_ok=True)
    files = {"pyproject.toml": PROJECT, "echo/server.py": SERVER, "echo/client.py": CLIENT, "echo/__init__.py": ""}
    for path, text in files.items():
        (app / path).write_text(textwrap.dedent(text))
    out = folder / f"floor-{when}.json"
    made.run(app, {"out": str(out), "rounds": rounds, "size": 4 * 34600})
    made.until(out.is_file, 200, "the floor")
    return list(json.loads(out.read_text())[1:])


def _ours(made: Any, folder: Path, rounds: int) -> list[float]:
    from polyfed.deploy.init import init

    (folder / "ours.toml").write_text(OURS.format(rounds=rounds))
    init(folder / "ours", str(folder / "ours.toml"))
    made.run(folder / "ours", {"out": str(folder / "run")})
    made.until((folder / "run" / "result.json").is_file, 300, "our run")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines[1:-1]]


SERVER = """
    import json, os, time
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid, context):
        config, times = context.run_config, []
        while len(nodes := list(grid.get_node_ids())) < 3:
            time.sleep(0.2)
        for _ in range(int(config["rounds"])):
            start = time.perf_counter()
            record = ArrayRecord({"bytes": Array(np.zeros(int(config["size"]), np.uint8))})
            ids = set(grid.push_messages([Message(RecordDict({"x": record}), n, "query") for n in nodes]))
            while ids:
                ids -= {m.metadata.reply_to_message_id for m in grid.pull_messages(list(ids))}
                time.sleep(min(max(0.05 * (time.perf_counter() - start), 0.01), 0.25) if ids else 0)
            times.append(time.perf_counter() - start)
        with open(config["out"] + ".new", "w") as file:
            json.dump(times, file)
        os.rename(config["out"] + ".new", config["out"])
"""
CLIENT = """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def echo(message, context):
        return Message(message.content, reply_to=message)
"""
PROJECT = """
    [project]
    name = "floor"
    version = "1.0.0"
    dependencies = []
    [tool.flwr.app]
    publisher = "polyfed"
    [tool.flwr.app.components]
    serverapp = "echo.server:app"
    clientapp = "echo.client:app"
    [tool.flwr.app.config]
    out = ""
    rounds = 6
    size = 1000
"""
OURS = """
rounds = {rounds}
cohort = "all"
[data]
name = "nodes"
clients = 3
shape = [64]
objectives = {{digit = 10}}
[model]
name = "mlp"
hidden = [460]
[algorithm]
name = "fedavg"
local_steps = 1
[evaluate]
every = {rounds}
"""

if __name__ == "__main__":
    parts = {"grid": grid, "ray": ray, "flower": flower}
    for name in sys.argv[1:] or parts:
        load = os.getloadavg()[0]
        print(name, {key: round(value, 3) for key, value in parts[name]().items()}, f"load {load:.1f}", flush=True)
