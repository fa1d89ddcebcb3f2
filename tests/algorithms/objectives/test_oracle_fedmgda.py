"""FedAvg, FedMGDA+ and the fair baselines against replays of their papers (Hu et al. 2022 and others) in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from oracles import (
    PARTIAL,
    SETTINGS,
    SIZES,
    Array,
    By,
    Record,
    Setting,
    World,
    nearest_mixture,
    run,
    shortest,
    world,
)  # fmt: skip
from polyfed import AFL, FedAvg, FedAvgN, FedMGDA, FedMGDAPlus, FedProx, MGDAProx, Objective, Problem, QFedAvg, train
from polyfed.algorithms.base import StepDecay


@dataclass(frozen=True)
class User:
    """f_i = sum_s omega_s f_si of client i, over the objectives it holds."""

    about: World
    i: int
    omega: Array

    def loss(self, w: Array) -> float:
        return float(sum(self.omega[s] * self.about.loss(self.i, s, w) for s in self._held()))

    def grad(self, w: Array, rows: Any = slice(None)) -> Array:
        return sum((self.omega[s] * self.about.grad(self.i, s, w, rows) for s in self._held()), np.zeros_like(w))

    def update(self, x: Array, lr: float, steps: Sequence[Any], mu: float = 0.0) -> Array:
        """Client Update: g = w0 - w after steps on f_i + mu/2 |w - w0|^2."""
        w = x
        for rows in steps:
            w = w - lr * (self.grad(w, rows) + mu * (w - x))
        return np.asarray(x - w)

    def _held(self) -> list[int]:
        return [s for s in range(len(self.omega)) if self.about.holds[self.i, s]]


def users(about: World, asked: Sequence[int], heard: Sequence[int], a: Array) -> list[User]:
    """Those heard. omega_s = lambda_s W / W_s makes the mean of f_i over all *asked* sum_s lambda_s mean_{R_s} f_si.

    It goes out before anybody knows who will answer. With one objective it is 1.
    """
    A = about.holds[list(asked)]
    lam = A.any(0) / A.any(0).sum()
    W_s = a @ A
    omega = np.array([v * a.sum() / w if w else 0.0 for v, w in zip(lam, W_s, strict=True)])
    return [User(about, i, omega) for i in heard]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def close_weights(line: Mapping[str, Any], heard: Sequence[int], lam: Array) -> None:
    assert list(line["client_weights"]) == [str(i) for i in heard]
    np.testing.assert_allclose(list(line["client_weights"].values()), lam, atol=1e-7)


# Algorithm 1, and what its switches make of it


def fedmgda_plus(g: Array, lam0: Array, normalise: bool, eps: float) -> tuple[Array, Array]:
    """Lines 5 to 7: the common direction and the weights; a zero update has no direction and stays zero."""
    if normalise:
        g = np.array([v / np.linalg.norm(v) if v.any() else v for v in g])
    lam = lam0 if eps == 0 else shortest(g, lam0, eps)
    return lam @ g, lam


FAMILY: dict[str, tuple[type[FedAvg], dict[str, Any], bool, float, float]] = {  # normalise, eps, mu
    "fedavg": (FedAvg, {}, False, 0.0, 0.0),
    "fedavg-n": (FedAvgN, {}, True, 0.0, 0.0),
    "fedprox": (FedProx, {"mu": 0.5}, False, 0.0, 0.5),
    "fedmgda": (FedMGDA, {}, False, 1.0, 0.0),
    "fedmgda+ 0.1": (FedMGDAPlus, {"eps": 0.1}, True, 0.1, 0.0),
    "fedmgda+ 1": (FedMGDAPlus, {"eps": 1.0}, True, 1.0, 0.0),
    "mgda-prox": (MGDAProx, {"eps": 0.15, "mu": 0.5}, True, 0.15, 0.5),
}


def check_family(name: str, about: World, setting: Setting, steps: int = 3, **how: Any) -> Record:
    """Three rounds from the start with a decaying global step, eta_t = 0.8, 0.8, 0.4."""
    kind, extra, normalise, eps, mu = FAMILY[name]
    batch = bool(how)
    how = how or {"local_steps": steps, "batch_size": 0}
    eta = StepDecay(start=0.8, decay=0.5, every=2)
    record = run(about, kind(lr=0.05, server_lr=eta, weighting_by=setting.by, **extra, **how), setting)
    x = about.start
    for t, line in enumerate(record.lines):
        asked, heard = line["cohort"], record.heard(t, setting)
        rows: Any = record.steps[t] if batch else {i: [slice(None)] * steps for i in heard}
        everyone = users(about, asked, heard, about.shares(asked, setting.by))
        g = np.stack([u.update(x, 0.05, rows[u.i], mu) for u in everyone])
        a = about.shares(heard, setting.by)
        d, lam = fedmgda_plus(g, a / a.sum(), normalise, eps)
        x = x - (0.8, 0.8, 0.4)[t] * d
        close(record.x[t + 1], x)
        if normalise or eps:
            close_weights(line, heard, lam)
        assert np.linalg.norm(d) > 1e-4
    return record


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", FAMILY)
def test_full_batches(name: str, setting: Setting) -> None:
    """Algorithm 1, lambda_0 uniform or by size, k local steps on all rows."""
    check_family(name, world(objectives=2, holds=setting.holds), setting)


@pytest.mark.parametrize("name", FAMILY)
def test_one_objective_is_the_papers_own_setting(name: str) -> None:
    """f_i is the client's loss: no omega."""
    check_family(name, world(objectives=1), Setting(cohort=4, by="size"))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedmgda+ 0.1"])
def test_minibatches(name: str) -> None:
    """Lines 12 to 15: k epochs, in each of which a client's rows are split into batches."""
    record = check_family(name, world(objectives=2), Setting(), local_epochs=2, batch_size=4)
    for steps in record.steps:
        for client, seen in steps.items():
            r = -(-SIZES[client] // 4)
            assert len(seen) == 2 * r
            for epoch in (seen[:r], seen[r:]):
                assert sorted(np.concatenate(epoch)) == list(range(SIZES[client]))


def test_a_client_at_its_minimum_has_a_zero_update() -> None:
    """Normalising leaves it zero: FedAvg-n takes half of the other's step, and the min-norm point is zero."""
    about = world(objectives=1, sizes=(4, 9))
    settled = World(about.X, (0 * about.Y[0], about.Y[1]), about.holds, np.zeros(7))
    g = settled.grad(1, 0, np.zeros(7))
    one_step: dict[str, Any] = {"lr": 0.05, "local_steps": 1, "batch_size": 0}
    close(run(settled, FedAvgN(**one_step), rounds=1).x[1], -g / np.linalg.norm(g) / 2)
    assert not run(settled, FedMGDAPlus(eps=1.0, **one_step), rounds=1).x[1].any()


# q-FedAvg (Li et al. 2020)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_q_fedavg(q: float, setting: Setting) -> None:
    """Their Algorithm 2: Delta_i = F_i^q Dw_i, h_i = q F_i^(q-1) |Dw_i|^2 + L F_i^q, Dw_i = L (x - x_i)."""
    about, lr = world(objectives=2, holds=setting.holds), 0.05
    L = 30.0 if q == 2 else None  # 1 / lr unless given
    record = run(about, QFedAvg(q=q, L=L, lr=lr, local_steps=3, batch_size=0, weighting_by=setting.by), setting)
    x = about.start
    for t, line in enumerate(record.lines):
        asked, heard = line["cohort"], record.heard(t, setting)
        everyone = users(about, asked, heard, about.shares(asked, setting.by))
        F = np.array([u.loss(x) for u in everyone]) + 1e-10
        Dw = (L or 1 / lr) * np.stack([u.update(x, lr, [slice(None)] * 3) for u in everyone])
        h = q * F ** (q - 1) * (Dw**2).sum(1) + (L or 1 / lr) * F**q
        a = about.shares(heard, setting.by)
        x = x - (a * F**q) @ Dw / (a @ h)
        close(record.x[t + 1], x)


def test_q_0_is_fedavg_for_any_lipschitz_estimate() -> None:
    about = world(objectives=2)
    how: dict[str, Any] = {"lr": 0.05, "local_steps": 3, "batch_size": 0}
    average = run(about, FedAvg(**how)).x[-1]
    for L in (None, 7.0):
        close(run(about, QFedAvg(q=0.0, L=L, **how)).x[-1], average)


# AFL (Mohri et al. 2019)


@pytest.mark.parametrize(
    ("setting", "batch_size"), [*((setting, 0) for setting in SETTINGS), (SETTINGS[2], 3)], ids=str
)
def test_afl(setting: Setting, batch_size: int) -> None:
    """Their Figure 3: descend in w and ascend in lambda from the same point; of a cohort lambda keeps its sum."""
    about, gamma_w, gamma_l = world(objectives=2, holds=setting.holds), 0.1, 0.02
    method = AFL(lr=gamma_w, lambda_lr=gamma_l, batch_size=batch_size, weighting_by=setting.by)
    record = run(about, method, setting)
    x, lam = about.start, about.shares(range(5), setting.by)
    lam = lam / lam.sum()
    for t, line in enumerate(record.lines):
        asked, heard = line["cohort"], record.heard(t, setting)
        everyone = users(about, asked, heard, np.ones(len(asked)))
        rows: Any = record.steps[t] if batch_size else {i: [slice(None)] for i in heard}
        g = np.stack([u.grad(x, rows[u.i][0]) for u in everyone])
        F = np.array([u.loss(x) for u in everyone])
        share = lam[heard].copy()
        lam[heard] = nearest_mixture(share + gamma_l * F, share.sum())
        x = x - gamma_w * share @ g / share.sum()
        close(record.x[t + 1], x)
        np.testing.assert_allclose(list(line["client_weights"].values()), lam, atol=1e-9)
    assert np.ptp(lam) > 1e-3


# buffers


@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize(
    "method",
    [
        lambda by: FedAvg(lr=0.05, local_steps=1, batch_size=0, weighting_by=by),
        lambda by: FedMGDAPlus(lr=0.05, local_steps=1, batch_size=0, weighting_by=by, eps=1.0),
        lambda by: QFedAvg(lr=0.05, local_steps=1, batch_size=0, weighting_by=by),
        lambda by: AFL(lr=0.05, weighting_by=by),
    ],
    ids=["fedavg", "fedmgda+", "q-fedavg", "afl"],
)
def test_batch_norm_statistics_are_the_mean_over_clients(method: Any, by: By) -> None:
    """By a_i, also where the updates have other weights; AFL's by its mixture. After one step on all rows."""
    about = world(objectives=2, holds=PARTIAL)
    problem = Problem(
        nn.Sequential(nn.BatchNorm1d(7, affine=False), nn.Linear(7, 1)),
        [Objective("f0", "squared"), Objective("f1", "binary")],
        torch.float64,
    )
    state = train(problem, about.federation(), method(by), rounds=1).model.state_dict()
    a = about.shares(range(5), by)
    close(state["0.running_mean"].numpy(), np.average([0.1 * X.mean(0) for X in about.X], axis=0, weights=a))
    var = [0.9 + 0.1 * X.var(0, ddof=1) for X in about.X]
    close(state["0.running_var"].numpy(), np.average(var, axis=0, weights=a))


@pytest.mark.parametrize("method", [FedMGDA(weights={"f0": 1.0}, batch_size=0), FedMGDAPlus(batch_size=0, eps=1.0)])
def test_a_client_without_a_stake_does_not_stop_training(method: FedMGDA) -> None:
    """Its update is zero, and the min-norm point would be that client alone."""
    nothing = [[1, 0], [1, 0], [0, 1]] if method.weights else [[1, 1], [1, 1], [0, 0]]
    found = run(world(objectives=2, holds=np.array(nothing, dtype=bool), sizes=(12, 15, 9), dim=6), method)
    assert all(np.linalg.norm(after - before) > 1e-3 for before, after in itertools.pairwise(found.x))
    assert found.lines[-1]["client_weights"]["2"] == 0.0


def test_a_cohort_without_any_stake_stays_where_it_is() -> None:
    holds, method = np.array([[1, 0], [0, 1]], dtype=bool), FedMGDA(weights={"f0": 1.0})
    found = run(world(objectives=2, holds=holds, sizes=(12, 15), dim=6), method, Setting(cohort=1), rounds=4)
    moved = [np.linalg.norm(after - before) > 0 for before, after in itertools.pairwise(found.x)]
    assert moved == [0 in line["cohort"] for line in found.lines]
