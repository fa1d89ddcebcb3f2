"""The quadratic testbed in a few lines of numpy, some hundred times as fast, for figures over many seeds.

Groups are drawn by polyfed's own schedules, so that a seed has the same figures as a run of the library:
`places` measures that on some rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.algorithms.models.schedules import Groups, schedules, split
from polyfed.core.keys import generator
from polyfed.data.quadratic import minimiser
from polyfed.data.tridiagonal import chain, value
from polyfed.reproduce.papers.many_models.training import lines_of

N, P, MU = 24, 4, 2e-4  # Section 6.2
COMPARED = (0, 20)  # first seeds of items
CHECKED = 36  # rounds of a run of the library that the short form is compared with
Array = NDArray[np.float64]
Rate = Callable[[int], float]
RATES: dict[str, Rate] = {"constant": lambda t: 0.1, "decaying": lambda t: 30 / (100 + t)}
STEPS: dict[str, Any] = {"constant": 0.1, "decaying": {"beta": 30.0, "gamma": 100.0}}  # as experiments have them


@cache
def problem() -> tuple[Array, Array, Array, Array, float]:
    """A_k and b_k of all clients, those of F, and F*."""
    rows, d = chain(N, P, MU), N * P + 1
    mean = rows.mean(0)
    least = value(mean, minimiser({"f": rows}, {"f": 1.0}))
    return rows[:, : d * d].reshape(N, d, d), rows[:, d * d :], mean[: d * d].reshape(d, d), mean[d * d :], least


def groups(schedule: str, t: int, M: int, seed: int) -> Groups:
    """As `ClientPool` draws them, with every client in the cohort."""
    everyone = list(range(N))
    return schedules[schedule](t, M, lambda of: split(everyone, M, generator(seed, "cohort", of, "groups")))


def excess(schedule: str, M: int, rounds: int, rate: Rate, E: int, seed: int, *, until: float = 0.0) -> Array:
    """F(w) - F* of each model after each round, (rounds, M).

    Args:
        schedule: 'mfa-rand' or 'mfa-rr'.
        M: how many models.
        rounds: how many at most.
        rate: the step size of a round.
        E: local steps.
        seed: of the groups.
        until: ends early when all models have been at or below it.
    """
    A, b, A0, b0, least = problem()
    W, found, below = np.zeros((M, len(A0))), np.full((rounds, M), np.nan), np.zeros(M, dtype=bool)
    for t in range(1, rounds + 1):
        assigned = groups(schedule, t, M, seed) if M > 1 else [list(range(N))]
        model = np.empty(N, dtype=int)
        for m, group in enumerate(assigned):
            model[group] = m
        X = W[model]
        for _ in range(E):
            X = X - rate(t) * ((A @ X[:, :, None])[:, :, 0] - b)
        W = np.stack([X[group].mean(0) for group in assigned])
        found[t - 1] = ((W @ A0) * W).sum(1) / 2 - W @ b0 - least
        below |= found[t - 1] <= until
        if until and below.all():
            return found[:t]
    return found


def gaps(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """A driver: the log gap of the first model, over rounds, at the end of the last frame and in the middle of it.

    Args:
        settings: schedule, models, E, rate ('constant' or 'decaying'), rounds, every (rounds between points of the
            curve).
        seed: of the groups; the first of an item is compared with a run of the library.
    """
    rate, rounds = settings["rate"], settings["rounds"]
    found = np.log10(excess(settings["schedule"], settings["models"], rounds, RATES[rate], settings["E"], seed)[:, 0])
    x = list(range(settings["every"], rounds + 1, settings["every"]))
    last, middle = x[-1], x[-1] - settings["models"] // 2
    values: dict[str, float | None] = {"gap": float(found[last - 1]), "inside": float(found[middle - 1])}
    values["places"] = places(settings, seed) if seed in COMPARED else None
    curve = {"x": {"round": x}, "y": [float(found[t - 1]) for t in x]}
    return {"values": values, "rounds": rounds, "curves": {"gap": curve}}


def places(settings: dict[str, Any], seed: int) -> float:
    """To how many decimal places the log gaps of all models agree with the library's own run, over some rounds.

    Args:
        settings: as `gaps` has them.
        seed: of the run.
    """
    M, rate, schedule, E = (settings[key] for key in ("models", "rate", "schedule", "E"))
    experiment = {
        "rounds": CHECKED, "seed": seed, "cohort": "all", "guard": "off", "engine": {"name": "local"},
        "data": {"name": "tridiagonal", "users": N, "p": P, "mu": MU, "partition": "natural"},
        "model": {"name": "point", "dtype": "float64"}, "models": {"m": {"copies": M}},
        "algorithm": {"name": "fedavg", "lr": STEPS[rate], "local_steps": E, "batch_size": 0},
        "schedule": {"name": schedule},
    }  # fmt: skip
    theirs = np.array([[row["excess"] for row in line["metrics"].values()] for line in lines_of(experiment)])
    ours = excess(schedule, M, CHECKED, RATES[rate], E, seed)
    return -math.log10(max(float(np.abs(np.log10(theirs) - np.log10(ours)).max()), 1e-16))


GAPS = {"gain": -2.5, "easy": -2.0, "shallow": -2.3, "deep": -2.9}  # log10 of the gap that every model has to reach
MOST = 20_000  # rounds


def gain(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """A driver: the gain M T_1 / T_M at four gaps.

    Args:
        settings: schedule, models and E (local steps).
        seed: of the groups.
    """
    M, E = settings["models"], settings["E"]
    alone, together = hits("mfa-rr", 1, E, 0), hits(settings["schedule"], M, E, seed)
    values = {name: M * alone[name] / together[name] for name in GAPS}
    return {"values": values, "rounds": max(together.values())}


@cache
def hits(schedule: str, M: int, E: int, seed: int) -> dict[str, int]:
    """The first round by which every model has been at each gap, the last where one never is; alone, whatever the seed.

    Args:
        schedule: 'mfa-rand' or 'mfa-rr'.
        M: how many models.
        E: local steps.
        seed: of the groups.
    """
    found = excess(schedule, M, MOST, RATES["constant"], E, seed, until=10 ** min(GAPS.values()))
    below = {name: found <= 10**gap for name, gap in GAPS.items()}
    return {name: int(np.where(some.any(0), some.argmax(0) + 1, MOST).max()) for name, some in below.items()}
