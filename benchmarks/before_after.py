"""This commit beside an earlier one, in turns: `python benchmarks/before_after.py OLD/src [--gpu] [--times 5]`.

Each measurement is a process of its own that trains by `polyfed.train`, which both have; the figure is the median time
of a round, and of several processes again the median. OLD is a checkout of the earlier commit (`git worktree add`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

HERE = Path(__file__).parents[1] / "src"
CPU = ["mlp", "conv", "mlp on 2 workers", "conv on 2 workers", "mlp by fedcmoo", "mlp on wire", "import", "help"]
GPU = ["gpu 10", "gpu 100", "gpu 1000"]


def child(kind: str) -> float:
    """Milliseconds of one round."""
    from polyfed import Federation, Objective, Problem, train
    from polyfed.algorithms import algorithms

    torch.set_num_threads(1)
    torch.manual_seed(0)
    clients = int(kind.split()[1]) if kind.startswith("gpu") else 10
    x, owners = data(kind, clients)
    y = {name: torch.randint(0, 10, (len(x),)) for name in ("left", "right")}
    federation = Federation.from_arrays(x, y, clients=owners, test=(x[:8], {n: t[:8] for n, t in y.items()}))
    problem = Problem(Two(net(kind)), [Objective(name, "cross-entropy") for name in y])
    method = algorithms["fedcmoo" if "fedcmoo" in kind else "fedavg"](lr=0.1, local_steps=10, batch_size=128)
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            problem, federation, method, rounds=30 if kind.startswith("gpu") else 12, cohort=clients,
            engine=engine(kind), evaluate={"every": 10_000}, out=f"{folder}/run",
        )  # fmt: skip
    return 1e3 * statistics.median(float(line["seconds"]) for line in result.history[4:-1])


class Two(nn.Module):
    """Twenty outputs for two objectives of ten classes."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.body(x)
        return {"left": out[:, :10], "right": out[:, 10:]}


def net(kind: str) -> nn.Module:
    if "mlp" in kind:
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 20))
    return nn.Sequential(
        nn.Conv2d(1, 10, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 15, 3), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(540 if kind.startswith("gpu") else 60, 50), nn.ReLU(), nn.Linear(50, 20),
    )  # fmt: skip


def data(kind: str, clients: int) -> tuple[Tensor, Any]:
    """Examples, and who has which: on a GPU 640 rows a client, shared by reference."""
    from polyfed import Rows

    if not kind.startswith("gpu"):
        return torch.rand(10_000, 64) if "mlp" in kind else torch.rand(10_000, 1, 14, 14), clients
    order = np.arange(min(clients * 640, 70_000))
    starts = (np.arange(clients) * 640) % len(order)
    return torch.rand(len(order), 1, 28, 28), Rows(order, starts, np.full(clients, 640))


def engine(kind: str) -> Any:
    if "workers" in kind:
        return {"name": "local", "workers": 2}
    if kind.startswith("gpu"):
        return {"name": "batched", "tf32": True}
    return "wire" if "wire" in kind else "local"


def measured(kinds: list[str], src: Path) -> list[float]:
    """One process's figures, in milliseconds."""
    (kind,) = kinds if len(kinds) == 1 else [",".join(kinds)]
    path = os.pathsep.join(filter(None, [str(src), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    commands = {"import": ["-c", "import polyfed"], "help": ["-m", "polyfed", "--help"]}
    if kind in commands:
        start = time.perf_counter()
        subprocess.run([sys.executable, *commands[kind]], env=environment, check=True, capture_output=True)
        took = time.perf_counter() - start
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
        return [1e3 * (took - (time.perf_counter() - start))]
    words = [sys.executable, __file__, "--child", kind]
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.child:
        print(json.dumps([child(kind) for kind in options.child.split(",")]))
        return
    if options.old is None or not (options.old / "polyfed").is_dir():
        raise SystemExit(
            "name the src folder of the earlier checkout: without it the installed polyfed would be measured"
        )
    groups = [GPU] if options.gpu else [[kind] for kind in CPU if options.only in kind]
    for kinds in groups:  # on a GPU all sizes in one process: its start takes longer than its rounds
        before, after = [], []
        for _ in range(options.times):
            before.append(measured(kinds, options.old))
            after.append(measured(kinds, HERE))
            print(f"  {before[-1]} {after[-1]}", file=sys.stderr, flush=True)
        for kind, *both in zip(kinds, zip(*before, strict=True), zip(*after, strict=True), strict=True):
            old, new = (statistics.median(values) for values in both)
            print(f"{kind:20} before {old:8.2f} ms   after {new:8.2f} ms   {new / old:5.3f}", flush=True)


if __name__ == "__main__":
    main()
