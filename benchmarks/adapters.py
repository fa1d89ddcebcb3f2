"""What adapters cost in memory: a base of 191 MB under LoRA, eight clients, two rounds of FedAvg on `local`.

python benchmarks/adapters.py
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
from torch import Tensor, nn

from polyfed import Federation, Objective, Problem, train

WIDTH = 5000


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.two(torch.relu(self.one(x)))))
        return out


def peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    model = peft.get_peft_model(Net(), peft.LoraConfig(r=4, target_modules=["one", "two"]))
    base = sum(p.numel() * p.element_size() for p in model.parameters() if not p.requires_grad) / 2**20
    x = np.random.default_rng(0).normal(size=(80, WIDTH)).astype(np.float32)
    federation = Federation.from_arrays(x, {"y": (x[:, 0] > 0).astype(int)}, clients=8)
    before = peak()
    with tempfile.TemporaryDirectory() as folder:
        problem = Problem(model, [Objective("y", "cross-entropy")])
        train(problem, federation, "fedavg", rounds=2, out=Path(folder) / "run")
    print(f"base {base:.0f} MB; peak {before:.0f} MB before training, {peak():.0f} MB after")


if __name__ == "__main__":
    main()
