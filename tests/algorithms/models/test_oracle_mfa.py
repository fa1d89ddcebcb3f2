"""Whole rounds of MFA-Rand and MFA-RR over FedAvg against numpy written from the paper (Bhuyan, Moharir, Joshi 2022).

The oracle takes each round's groups from the run's history, and who answered from a layer that lists it. Minibatches
are drawn as documented, from the client's key (`core.keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from answered import Answered, Iterates, uneven
from polyfed import FedAvg, Federation, MultiModel, Objective, Problem, Result, train_many
from polyfed.core.keys import client_key, key, permutation
from polyfed.layers.faults import Faults

Array = np.ndarray
N, ROUNDS, SEED = 7, 4, 3
SIZES = {"line": (4, 9, 6, 5, 8, 3, 7), "plane": (6, 0, 5, 7, 0, 4, 8), "bent": (5,) * N, "flat": (5,) * N}
WIDTH = {"line": 3, "plane": 2, "bent": 4, "flat": 2}


def rows(name: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(len(name))
    X = rng.normal(size=(sum(SIZES[name]), WIDTH[name]))
    return X, X @ rng.normal(size=WIDTH[name]) + 0.5 * rng.normal(size=len(X))


def problem(name: str) -> Problem:
    torch.manual_seed(len(name))
    return Problem(nn.Linear(WIDTH[name], 1, bias=False), [Objective("y", "squared")], torch.float64)


@dataclass
class Case:
    """What the run is like: its models' step sizes and batches in round t, as the oracle says them."""

    method: FedAvg
    rate: Callable[[int], float]
    names: tuple[str, ...] = ("line", "plane")
    schedule: str = "mfa-rr"
    cohort: int | str = "all"
    drop: float = 0.0
    batch: Callable[[int, int], int] = field(default=lambda t, n: n)

    def replay(self) -> Result:
        """Algorithm 1: steps 7 to 11 at the clients, 12 to 15 at the server."""
        answered, iterates = Answered(), Iterates()
        many = MultiModel({name: (problem(name), self.method) for name in self.names}, self.schedule)
        federations = {
            name: Federation.from_arrays(rows(name)[0], {"y": rows(name)[1]}, clients=uneven(SIZES[name]))
            for name in self.names
        }
        result = train_many(
            many, federations, rounds=ROUNDS, seed=SEED, cohort=self.cohort, callbacks=[iterates],
            layers=[answered, Faults(drop=self.drop)], evaluate={"every": ROUNDS},
        )  # fmt: skip
        w = {name: problem(name).initial()["x"].numpy().copy() for name in self.names}
        for t, line in enumerate(result.history, 1):
            for name in self.names:
                group = line["groups"][name]
                heard = answered.among(t, "sgd", group) if group else []
                assert (name in line["idle"]) == (not heard)
                if heard:
                    a = np.array(SIZES[name], dtype=float) if self.method.weighting_by == "size" else np.ones(N)
                    updates = [a[c] * self.update(name, w[name], t, c) for c in heard]
                    w[name] = w[name] - np.asarray(sum(updates)) / a[heard].sum()
                np.testing.assert_allclose(iterates.found[t - 1][name], w[name], rtol=0, atol=1e-9)
        return result

    def update(self, name: str, w: Array, t: int, client: int) -> Array:
        """E steps of gradient descent on the client's rows: w - w_E."""
        X, y = rows(name)
        mine = uneven(SIZES[name])[client]
        v, size = w.copy(), min(self.batch(t, len(mine)), len(mine))
        passes = -(-len(mine) // size)
        for e in range(self.method.local_steps):
            if size < len(mine):
                order = mine[permutation(key(client_key(SEED, t, client), "batch", e // passes), len(mine))]
                some = order[e % passes * size : (e % passes + 1) * size]
            else:
                some = mine
            v -= self.rate(t) * 2 * X[some].T @ (X[some] @ v - y[some]) / len(some)
        return np.asarray(w - v)


def fedavg(**settings: Any) -> FedAvg:
    return FedAvg(**{"lr": 0.05, "local_steps": 3, "batch_size": 0, **settings})


def constant(t: int) -> float:
    return 0.05


@pytest.mark.parametrize("schedule", ["mfa-rand", "mfa-rr"])
@pytest.mark.parametrize("names", [("line", "bent"), ("line", "plane", "bent")])
@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize("cohort", ["all", 4])
def test_algorithm_1(cohort: Any, by: Any, names: tuple[str, ...], schedule: str) -> None:
    """Two of the clients have no rows for the plane: they are passed over when they are given it, and counted."""
    result = Case(fedavg(weighting_by=by), constant, names, schedule, cohort).replay()
    for line in result.history:
        expected = N if cohort == "all" else cohort
        assert sum(map(len, line["groups"].values())) + sum(line["passed_over"].values()) == expected
        assert not set(line["groups"].get("plane", [])) & {1, 4}


@pytest.mark.parametrize("schedule", ["mfa-rand", "mfa-rr"])
def test_clients_that_are_lost(schedule: str) -> None:
    """The mean is of those who answered; a model without any answer stays, and says so."""
    result = Case(fedavg(weighting_by="size"), constant, ("line", "plane", "bent"), schedule, drop=0.55).replay()
    assert any(line["idle"] for line in result.history)


def test_step_sizes_of_theorem_1_and_2() -> None:
    """beta / (t + gamma) for Rand; one rate a frame, beta / (1 + floor((t - 1) / M) + gamma), for RR."""
    names = ("line", "bent")
    rand = fedavg(lr={"beta": 0.3, "gamma": 5.0})
    Case(rand, lambda t: 0.3 / (t + 5), names, "mfa-rand").replay()
    robin = fedavg(lr={"beta": 0.3, "gamma": 5.0, "every": "frame"})
    Case(robin, lambda t: 0.3 / (1 + (t - 1) // 2 + 5), names).replay()


@pytest.mark.parametrize("size", [2, 5])
def test_minibatches(size: int) -> None:
    """Pass after pass, each in a fresh order; the last batch of a pass may be smaller."""
    names = ("line", "plane", "bent")
    Case(fedavg(batch_size=size, local_steps=5), constant, names, batch=lambda t, n: size).replay()


def test_batches_that_grow_as_theorem_2_asks() -> None:
    """Of 5 rows at most 3/5 may be left out in the first frame: batches of 3 and 2, as 2, 2 and 1 would leave out more.

    In the second frame it is 3/10, which no cut of 5 rows keeps to: all of them.
    """
    method = fedavg(batch_size={"start": 2, "full": 5, "every": "frame"}, local_steps=4)
    Case(method, constant, ("bent", "flat"), batch=lambda t, n: 3 if t <= 2 else n).replay()
