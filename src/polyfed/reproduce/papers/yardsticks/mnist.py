"""Logistic regression on MNIST with a thousand clients of two digits each, as LEAF-style benchmarks have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from polyfed.data import datasets
from polyfed.reproduce.papers.yardsticks.race import race

CLIENTS, FEWEST = 1000, 10


def run(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One contestant's run.

    Args:
        settings: contestant, rounds, cohort, batch, lr, and engine for polyfed.
        seed: of sizes, weights and cohorts.
    """
    how = {key: value for key, value in settings.items() if key != "contestant"}
    return race(settings["contestant"], rows(seed), {**how, "network": "logistic", "seed": seed})


def rows(seed: int) -> dict[str, Any]:
    """Clients with rows of two digits each, sizes by a power law; and the test rows.

    Args:
        seed: of the sizes.
    """
    mnist = datasets["mnist"]()
    x = torch.from_numpy(np.array(mnist.x)).float().reshape(len(mnist.x), 1, 28, 28) / 255
    y = np.asarray(next(iter(mnist.targets.values()))).astype(np.int64)
    train = mnist.train or len(y)
    lengths = sizes(train, seed)
    left = {digit: list(np.flatnonzero(y[:train] == digit)) for digit in range(10)}
    order: list[int] = []
    for client, n in enumerate(lengths):
        for k in range(n):
            digit = (client + k % 2) % 10
            if not left[digit]:  # others have taken all: the fullest one instead
                digit = max(left, key=lambda one: len(left[one]))
            order.append(int(left[digit].pop()))
    targets = torch.from_numpy(y)
    return {"x": x[order], "y": targets[order], "lengths": lengths, "test_x": x[train:], "test_y": targets[train:]}


def sizes(total: int, seed: int) -> list[int]:
    """Rows of each client: ten, and a lognormal share of the rest.

    Args:
        total: rows that there are.
        seed: of the draw.
    """
    share = np.random.default_rng(seed).lognormal(0.0, 2.0, CLIENTS)
    return [FEWEST + int(n) for n in (total - FEWEST * CLIENTS) * share / share.sum()]
