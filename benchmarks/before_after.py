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

HERE = Path(__file__).parents[1] / "src"
CPU = ["mlp", "conv", "mlp on 2 workers", "conv on 2 workers", "mlp by fedcmoo", "mlp on wire", "import", "help"]
GPU = ["gpu 10", "gpu 100", "gpu 1000"]


def child(kind: str) -> float:
    """Milliseconds of one round, or of a start."""
    import numpy as np
    import torch
    from torch import nn

    from polyfed import FedAvg, Federation, Objective, Problem, Rows, train
    from polyfed.algorithms import algorithms

    torch.set_num_threads(1)
    torch.manual_seed(0)
    where, engine, rounds = "cpu", "local", 12
    settings: dict[str, Any] = {"lr": 0.1, "local_steps": 10, "batch_size": 128}
    method: Any = FedAvg(**settings)
    if kind.startswith("gpu"):
        clients, where, rounds = int(kind.split()[1]), "cuda", 30
        order = np.arange(min(clients * 640, 70_000))
        starts = (np.arange(clients) * 640) % len(order)
        owners: Any = Rows(order, starts, np.full(clients, 640))
        shape: tuple[int, ...] = (len(order), 1, 28, 28)
    else:
        owners, clients = 10, 10
        shape = (10_000, 64) if "mlp" in kind else (10_000, 1, 14, 14)
    body: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 20))
    if "mlp" not in kind:
        flat = 540 if where == "cuda" else 60
        body = nn.Sequential(
            nn.Conv2d(1, 10, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 15, 3), nn.MaxPool2d(2),
            nn.ReLU(), nn.Flatten(), nn.Linear(flat, 50), nn.ReLU(), nn.Linear(50, 20),
        )  # fmt: skip

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            out = self.body(x)
            return {"left": out[:, :10], "right": out[:, 10:]}

    x = torch.rand(*shape)
    y = {name: torch.randint(0, 10, (len(x),)) for name in ("left", "right")}
    how: Any = engine
    if "workers" in kind:
        how = {"name": "local", "workers": 2}
    elif "wire" in kind:
        how = "wire"
    elif where == "cuda":
        how = {"name": "batched", "tf32": True}
    if "fedcmoo" in kind:
        method = algorithms["fedcmoo"](**settings)
    federation = Federation.from_arrays(x, y, clients=owners, test=(x[:8], {n: t[:8] for n, t in y.items()}))
    problem = Problem(Two(), [Objective(name, "cross-entropy") for name in y])
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            problem, federation, method, rounds=rounds, cohort=clients, engine=how, evaluate={"every": 10_000},
            out=f"{folder}/run",
        )  # fmt: skip
    return 1e3 * statistics.median(line["seconds"] for line in result.history[4:-1])


def measured(kind: str, src: Path) -> float:
    """One process's figure, in milliseconds."""
    path = os.pathsep.join(filter(None, [str(src), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    commands = {"import": ["-c", "import polyfed"], "help": ["-m", "polyfed", "--help"]}
    if kind in commands:
        start = time.perf_counter()
        subprocess.run([sys.executable, *commands[kind]], env=environment, check=True, capture_output=True)
        took = time.perf_counter() - start
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
        return 1e3 * (took - (time.perf_counter() - start))
    words = [sys.executable, __file__, "--child", kind]
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child)))
        return
    for kind in GPU if options.gpu else CPU:
        if options.only not in kind:
            continue
        found: dict[str, list[float]] = {"before": [], "after": []}
        for _ in range(options.times):
            found["before"].append(measured(kind, options.old))
            found["after"].append(measured(kind, HERE))
        before, after = (statistics.median(values) for values in found.values())
        print(f"{kind:20} before {before:8.2f} ms   after {after:8.2f} ms   {after / before:5.3f}", flush=True)


if __name__ == "__main__":
    main()
