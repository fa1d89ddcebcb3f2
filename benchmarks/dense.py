"""Small dense models on one CPU core: `batched` against `local`, processor seconds of ten rounds of ten local steps."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyfed import FedAvg, Federation, Objective, Problem, train

SIZES = [(64, 0), (64, 64), (64, 256), (784, 64), (784, 200)]  # features and hidden units; ten classes


def seconds(problem: Problem, federation: Federation, cohort: int, batch: int, engine: dict[str, Any]) -> float:
    def run(rounds: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            train(
                problem, federation, FedAvg(lr=0.1, local_steps=10, batch_size=batch), rounds=rounds, cohort=cohort,
                engine=engine, evaluate={"every": rounds}, out=Path(folder) / "run",
            )  # fmt: skip
            return time.process_time() - start

    run(1)
    return min(run(10) for _ in range(3))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for features, hidden in SIZES:
        layers = [nn.Linear(features, hidden), nn.ReLU()] if hidden else []
        problem = Problem(nn.Sequential(*layers, nn.Linear(hidden or features, 10)), [Objective("y", "cross-entropy")])
        federation = Federation.from_arrays(torch.randn(15_360, features), torch.randint(0, 10, (15_360,)), clients=60)
        for cohort, batch in ((10, 10), (50, 10), (10, 64), (10, 256)):
            local = seconds(problem, federation, cohort, batch, {"name": "local"})
            stacked = seconds(problem, federation, cohort, batch, {"name": "batched", "device": "cpu"})
            print(
                f"{problem.dims['d']:7,} parameters, {cohort} clients, batch {batch:3}: local {local:.3f} s, "
                f"batched {stacked:.3f} s, {local / stacked:.1f} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
