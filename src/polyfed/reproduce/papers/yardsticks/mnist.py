"""Logistic regression on MNIST with a thousand clients of two digits each, dealt as FedProx's and LEAF-style files are.

Every pixel is standardised. Client u has five rows of the digits u and u + 1 each (modulo ten); the other rows of a
digit are shared out among its two hundred places in proportion to draws from a lognormal law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfed.data import datasets
from polyfed.reproduce.papers.yardsticks.race import race

CLIENTS, EACH, SIGMA = 1000, 5, 2.0


def run(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One contestant's run.

    Args:
        settings: contestant, rounds, cohort, batch, lr, and engine for polyfed.
        seed: of sizes, weights and cohorts.
    """
    how = {key: value for key, value in settings.items() if key != "contestant"}
    return race(settings["contestant"], rows(seed), {**how, "network": "logistic", "seed": seed})


def rows(seed: int) -> dict[str, Any]:
    """The clients' rows, one client after another, and the test rows.

    Args:
        seed: of the clients' sizes.
    """
    mnist = datasets["mnist"]()
    x = torch.from_numpy(np.array(mnist.x)).float().reshape(len(mnist.x), 1, 28, 28)
    y = np.asarray(next(iter(mnist.targets.values()))).astype(np.int64)
    train = mnist.train or len(y)
    x = (x - x[:train].mean(0)) / (x[:train].std(0) + 0.001)
    lists = deal(y[:train], seed)
    order = np.concatenate(lists)
    lengths, targets = [len(one) for one in lists], torch.from_numpy(y)
    return {"x": x[order], "y": targets[order], "lengths": lengths, "test_x": x[train:], "test_y": targets[train:]}


def deal(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """The rows of each client.

    Args:
        labels: the digit of each row.
        seed: of the draws.
    """
    places: list[list[NDArray[np.int64]]] = [[] for _ in range(CLIENTS)]
    rng = np.random.default_rng(seed)
    for digit in range(10):
        mine = np.flatnonzero(labels == digit)
        owners = [client for client in range(CLIENTS) if (digit - client) % 10 in (0, 1)]
        share = rng.lognormal(0.0, SIGMA, len(owners))
        number = EACH + ((len(mine) - EACH * len(owners)) * share / share.sum()).astype(int)
        for client, some in zip(owners, np.split(mine, np.cumsum(number))[: len(owners)], strict=True):
            places[client].append(some)
    return [np.concatenate(some) for some in places]
