"""pfl's CIFAR-10 benchmark: clients of fifty images each, a CNN with two convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from polyfed.data import datasets
from polyfed.reproduce.papers.yardsticks.race import race

ROWS = 50


def run(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One contestant's run.

    Args:
        settings: contestant, rounds, cohort, batch, lr, and engine for polyfed.
        seed: of clients, weights and cohorts.
    """
    how = {key: value for key, value in settings.items() if key != "contestant"}
    return race(settings["contestant"], rows(seed), {**how, "network": "cnn", "seed": seed})


def rows(seed: int) -> dict[str, Any]:
    """Images with each channel standardised, dealt at random; and the test images.

    Args:
        seed: of the deal.
    """
    cifar = datasets["cifar10"](subset=True)
    x = torch.from_numpy(np.array(cifar.x)).float().reshape(-1, 3, 32, 32)
    y = torch.from_numpy(np.asarray(next(iter(cifar.targets.values()))).astype(np.int64))
    train = cifar.train or len(y)
    mean, std = x[:train].mean((0, 2, 3), keepdim=True), x[:train].std((0, 2, 3), keepdim=True)
    x = (x - mean) / std
    order = torch.randperm(train, generator=torch.Generator().manual_seed(seed))
    lengths = [ROWS] * (train // ROWS)
    return {"x": x[order], "y": y[order], "lengths": lengths, "test_x": x[train:], "test_y": y[train:]}
