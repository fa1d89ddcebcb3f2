"""The quadratic testbed in a few lines of numpy, for figures over many seeds: groups by polyfed's own schedules.

`check` proves on some rounds that it is what the library computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from polyfed.algorithms.models.schedules import Groups, schedules, split
from polyfed.core.keys import generator
from polyfed.data.quadratic import minimiser
from polyfed.data.tridiagonal import chain, value

N, P, MU = 24, 4, 2e-4
Array = NDArray[np.float64]
Rate = Callable[[int], float]


@cache
def problem(n: int = N, p: int = P, mu: float = MU) -> tuple[Array, Array, Array, Array, float]:
    """A_k and b_k of all clients, those of F, and F*."""
    rows, d = chain(n, p, mu), n * p + 1
    mean = rows.mean(0)
    least = value(mean, minimiser({"f": rows}, {"f": 1.0}))
    return rows[:, : d * d].reshape(n, d, d), rows[:, d * d :], mean[: d * d].reshape(d, d), mean[d * d :], least


def groups(schedule: str, t: int, M: int, seed: int, n: int) -> Groups:
    """As `ClientPool` draws them, with every client in the cohort."""
    everyone = list(range(n))
    return schedules[schedule](t, M, lambda of: split(everyone, M, generator(seed, "cohort", of, "groups")))


def excess(
    schedule: str,
    M: int,
    rounds: int,
    rate: Rate,
    E: int,
    seed: int,
    *,
    until: float = 0.0,
    shape: tuple[int, int, float] = (N, P, MU),
) -> Array:
    """F(w) - F* of each of M models after each round (rounds, M); ends early when all have been below `until`."""
    A, b, A0, b0, least = problem(*shape)
    n, d = b.shape
    W, found, below = np.zeros((M, d)), np.full((rounds, M), np.nan), np.zeros(M, dtype=bool)
    for t in range(1, rounds + 1):
        assigned = groups(schedule, t, M, seed, n) if M > 1 else [list(range(n))]
        model = np.empty(n, dtype=int)
        for m, group in enumerate(assigned):
            model[group] = m
        X = W[model]
        for _ in range(E):
            X = X - rate(t) * ((A @ X[:, :, None])[:, :, 0] - b)
        W = np.stack([X[group].mean(0) for group in assigned])
        found[t - 1] = ((W @ A0) * W).sum(1) / 2 - W @ b0 - least
        below |= found[t - 1] <= until
        if until and below.all():
            break
    return found


def rounds_to(
    schedule: str, M: int, rate: Rate, E: int, seed: int, gap: float, *, shape: tuple[int, int, float] = (N, P, MU)
) -> int:
    """T_P(M, eps): the first round by which every model has been at the gap."""
    found = excess(schedule, M, 20_000, rate, E, seed, until=10**gap, shape=shape)
    return int((found <= 10**gap).argmax(0).max()) + 1


def constant(t: int) -> float:
    return 0.1


def decaying(t: int) -> float:
    return 30 / (100 + t)


def check(schedule: str, M: int, rounds: int, seed: int) -> float:
    """The largest difference of log10 gaps from the library's own run."""
    import torch

    from polyfed import FedAvg, MultiModel, Problem, train_many
    from polyfed.data import datasets
    from polyfed.data.build import federate
    from polyfed.data.partition import natural
    from polyfed.models.basic import Point

    dataset = datasets["tridiagonal"]()
    federation = federate(dataset, natural(dataset, rng=generator(0)))
    method = FedAvg(lr=0.1, local_steps=5, batch_size=0)
    models = {f"m{j}": (Problem(Point(N * P + 1), dataset.objectives, torch.float64), method) for j in range(M)}
    run = train_many(MultiModel(models, schedule), federation, rounds=rounds, seed=seed, guard="off")
    theirs = np.array([[row["excess"] for row in line["metrics"].values()] for line in run.history])
    ours = excess(schedule, M, rounds, constant, 5, seed)
    return float(np.abs(np.log10(theirs) - np.log10(ours)).max())
