"""MultiMNIST in FedCMOO's setting: 100 clients, 10 a round, Dirichlet(0.3) over composite labels, batch 128, tau = 10.

`POLYFED_DATA=... python benchmarks/accuracy.py fedcmoo --rounds 100 --seed 0` prints one line of JSON; about three
minutes on one core. Step sizes are the paper's (eta_s, eta_c); rotation U(-25, 25) degrees in training, dropout 0.5.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import Any

import torch

from polyfed import Problem, train
from polyfed.algorithms import algorithms
from polyfed.data.build import build_data
from polyfed.models import models

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedcmoo": ("fedcmoo", {"lr": 0.5, "server_lr": 1.2}),
    "fedcmoo-exact": ("fedcmoo", {"lr": 0.5, "server_lr": 1.2, "compress": "exact"}),
    "fedcmoo-one": ("fedcmoo", {"lr": 0.5, "server_lr": 1.2, "exchanges": 1, "ema": 0.8}),
    "fsmgda": ("fsmgda", {"lr": 0.1, "server_lr": 2.0}),
    "fsmgda-combined": ("fsmgda", {"lr": 0.1, "server_lr": 2.0, "upload": "combined"}),
    "fedcmoo-pref": ("fedcmoo-pref", {"lr": 0.3, "server_lr": 1.6}),
    "scalarised": ("fedavg", {"lr": 0.5, "server_lr": 1.2}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=sorted(METHODS))
    parser.add_argument("--data", default="multimnist")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--reuse", action="store_true", help="rows may have several owners, as in the authors' code")
    asked = parser.parse_args()
    split = {"clients": 100, "partition": "dirichlet", "alpha": 0.3, "reuse": asked.reuse}
    table = {"name": asked.data, **split, "rotate": 25}
    dataset, federation, _ = build_data(table, seed=asked.seed)
    torch.manual_seed(asked.seed)
    problem = Problem(models["two-digit-net"](dataset), dataset.objectives)
    name, settings = METHODS[asked.method]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            problem, federation, algorithms[name](local_steps=10, batch_size=128, **settings), rounds=asked.rounds,
            cohort=10, seed=asked.seed, engine=asked.engine, evaluate={"every": 50}, out=f"{folder}/run",
        )  # fmt: skip
    by_round = {
        line["round"]: [round(100 * m["accuracy"], 1) for m in line["metrics"].values()]
        for line in result.history
        if "metrics" in line
    }
    print(json.dumps({
        "method": asked.method, "data": asked.data, "seed": asked.seed, "reuse": asked.reuse, "accuracy": by_round,
        "megabytes_up": round(result.summary["bytes_up"] / 1e6, 1), "seconds": round(time.perf_counter() - start),
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
