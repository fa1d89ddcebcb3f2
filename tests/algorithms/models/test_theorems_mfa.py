"""The theorems of multi-model federated learning (Bhuyan, Moharir, Joshi 2022), where the minimisers are known."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from answered import Iterates, uneven
from polyfed import FedAvg, Federation, MultiModel, Objective, Problem, Result, train_many
from polyfed.algorithms.models.multimodel import ClientPool
from polyfed.algorithms.models.schedules import schedules
from polyfed.data import datasets
from polyfed.data.build import federate
from polyfed.data.partition import natural
from polyfed.data.tridiagonal import chain
from polyfed.models.basic import Point
from polyfed.reproduce.papers.many_models.testbed import Rate, excess
from testbeds import rounds_to, sized

Array = np.ndarray
N, MU, E, M = 6, 0.5, 3, 3
BETA, GAMMA, ROUNDS = 2.5, 32.0, 60  # beta > 1 / mu, gamma > 4 L beta - 1


class Trained(NamedTuple):
    """w of every model after each round (rounds, M, d), and what the run logged."""

    w: Array
    result: Result


def world() -> tuple[Array, Array, Array]:
    """A_k + mu I and b_k of all clients (7), (8), and the minimiser of F."""
    rows, d = chain(N, 1, MU), N + 1
    A, b = rows[:, : d * d].reshape(N, d, d), rows[:, d * d :]
    return A, b, np.linalg.solve(A.mean(0), b.mean(0))


@cache
def trained(schedule: str) -> Trained:
    """Full gradients and the theorems' decaying step, one rate a frame for RR; models start at 0, as in Algorithm 1."""
    dataset = datasets["tridiagonal"](users=N, p=1, mu=MU)
    federation = federate(dataset, natural(dataset, rng=np.random.default_rng(0)))
    every: Any = "frame" if schedule == "mfa-rr" else 1
    lr: Any = {"beta": BETA, "gamma": GAMMA, "every": every}
    method = FedAvg(lr=lr, local_steps=E, batch_size=0)
    models = {name: (Problem(Point(N + 1), dataset.objectives, torch.float64), method) for name in "abc"}
    many, iterates = MultiModel(models, schedule), Iterates()
    result = train_many(many, federation, rounds=ROUNDS, callbacks=[iterates], evaluate={"every": ROUNDS}, guard="off")
    return Trained(np.stack([np.stack(list(found.values())) for found in iterates.found]), result)


def distance(schedule: str) -> Array:
    """|w - w*| of every model after each round."""
    return np.asarray(np.linalg.norm(trained(schedule).w - world()[2], axis=2))


def constants(schedule: str) -> tuple[float, float, float]:
    """L, the largest gradient of a client at an iterate, and Gamma = min F - mean min F_k."""
    A, b, best = world()
    L = float(np.linalg.eigvalsh(A).max())
    w = np.concatenate([np.zeros((1, M, N + 1)), trained(schedule).w]).reshape(-1, N + 1)
    G = max(float(np.linalg.norm(w @ A[k] - b[k], axis=1).max()) for k in range(N))
    least = [float(-b[k] @ np.linalg.solve(A[k], b[k]) / 2) for k in range(N)]
    return L, G, float(best @ A.mean(0) @ best / 2 - b.mean(0) @ best - np.mean(least))


def test_theorem_1_bounds_rand() -> None:
    """E|w - w*|^2 <= nu / (t + gamma), for beta > 1/mu and gamma > 4 L beta - 1; full gradients have no variance."""
    found, (L, G, spread) = distance("mfa-rand"), constants("mfa-rand")
    assert BETA > 1 / MU
    assert GAMMA > 4 * L * BETA - 1
    B, C = 6 * L * spread + 8 * (E - 1) ** 2 * G**2, (M - 1) / (N - 1) * E**2 * G**2
    nu = max(BETA**2 * (B + C) / (BETA * MU - 1), (found[0] ** 2).max() * (1 + GAMMA))
    assert ((found**2).mean(1) <= nu / (np.arange(1, ROUNDS + 1) + GAMMA)).all()


def test_theorem_2_bounds_robin() -> None:
    """Corollary 1: |w - w*| <= phi' / (t/M + gamma), for beta > 1/mu and gamma > beta L - 1."""
    found, (L, G, _) = distance("mfa-rr"), constants("mfa-rr")
    Y, Z = L * G * E**2 * (M - 1) / (2 * M), L * G * E * (E - 1)
    phi = BETA * E * G * (M - 1) / M + max(BETA**2 * (Y + Z) / (BETA * MU - 1), found[0].max() * (1 + GAMMA))
    assert (found.max(1) <= phi / (np.arange(1, ROUNDS + 1) / M + GAMMA)).all()


def test_theorem_1_and_2_rand_is_one_over_t_in_squares_and_robin_faster() -> None:
    """(t + gamma) E[F(w) - F*] levels off for Rand; for RR even its product with (frame + gamma)^2 does not grow."""
    T, seeds = 500, range(5)
    t = np.arange(1, T + 1)
    frame = 1 + (t - 1) // M

    def mean(schedule: str, rate: Rate) -> Array:
        with sized(N, 1, MU):
            runs = [excess(schedule, M, T, rate, E, seed).mean(1) for seed in seeds]
        return np.asarray(np.mean(runs, 0))

    rand = mean("mfa-rand", lambda t: BETA / (t + GAMMA)) * (t + GAMMA)
    early, late = rand[50:200].mean(), rand[-150:].mean()
    assert 0.5 < late / early < 2
    robin = mean("mfa-rr", lambda t: BETA / (1 + (t - 1) // M + GAMMA)) * (frame + GAMMA) ** 2
    assert robin[-150:].mean() < 1.1 * robin[50:200].mean()


def test_remark_1_every_pair_meets_once_a_frame_under_robin() -> None:
    lines = trained("mfa-rr").result.history
    for start in range(0, ROUNDS, M):
        met = Counter((c, m) for line in lines[start : start + M] for m, group in line["groups"].items() for c in group)
        assert met == {(c, m): 1 for c in range(N) for m in "abc"}


@pytest.mark.parametrize("models", [2, 3, 6])
def test_remark_1_how_often_a_pair_does_not_meet_under_rand(models: int) -> None:
    """In M rounds a client does not meet a model with probability (1 - 1/M)^M."""
    pool = ClientPool(schedules["mfa-rand"], models, np.ones(6, dtype=np.int64), 6, seed=1)
    missed, frames = 0, 400
    for frame in range(frames):
        groups = [pool.groups(frame * models + u)[0] for u in range(1, models + 1)]
        missed += sum(all(c not in group for group in groups) for c in range(6))
    p, n = (1 - 1 / models) ** models, 6 * frames
    assert missed / n == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p) / n))


def test_robin_varies_less_than_rand() -> None:
    """Section 6: over the last frames, RR's models are closer to w* and to one another than Rand's."""
    rand, robin = (distance(schedule)[-3 * M :] for schedule in ("mfa-rand", "mfa-rr"))
    ends = {schedule: trained(schedule).w[-1] for schedule in ("mfa-rand", "mfa-rr")}
    assert robin.mean() < 0.5 * rand.mean()
    assert np.ptp(ends["mfa-rr"], axis=0).max() < 0.5 * np.ptp(ends["mfa-rand"], axis=0).max()


def test_theorem_3_gain_grows_up_to_half_of_the_clients_and_robin_gains_more() -> None:
    """g = M T_1 / T_P(M): above 1 and growing for M <= N/2 (N = 24, E = 5), RR's above Rand's."""
    alone = rounds_to("mfa-rr", 1, 5, 1, -2.5)
    gains = {
        name: [k * alone / rounds_to(name, k, 5, 1, -2.5) for k in (2, 4, 8, 12)] for name in ("mfa-rand", "mfa-rr")
    }
    for found in gains.values():
        assert found[0] > 1
        assert (np.diff(found) > 0).all()
    assert all(robin > rand for robin, rand in zip(gains["mfa-rr"], gains["mfa-rand"], strict=True))


# -- stochastic gradients whose batches grow


def regression(batch: Any) -> Array:
    """|w - w*| of two models' last frames: eight rows a client, minibatches, and the theorem's step."""
    rng = np.random.default_rng(0)
    X = np.linalg.qr(rng.normal(size=(48, 2)))[0] * np.sqrt(48)  # X^T X / 48 = 1: the loss has curvature 2 on average
    y = X @ [1.0, -2.0] + rng.normal(size=48)
    federation = Federation.from_arrays(X, {"y": y}, clients=uneven((8,) * 6))
    lr: Any = {"beta": 2.0, "gamma": 20.0, "every": "frame"}
    method = FedAvg(lr=lr, local_steps=2, batch_size=batch)
    problem = Problem(nn.Linear(2, 1, bias=False), [Objective("y", "squared")], torch.float64)
    iterates = Iterates()
    many = MultiModel(dict.fromkeys("ab", (problem, method)))
    train_many(many, federation, rounds=50, callbacks=[iterates], evaluate={"every": 50})
    best = np.linalg.lstsq(X, y, rcond=None)[0]
    ends = [np.linalg.norm(w - best) for found in iterates.found[-11::2] for w in found.values()]
    return np.array(ends)


def test_theorem_2_batches_that_grow_reach_what_fixed_ones_do_not() -> None:
    """(N - N_s(t)) / N <= eta_t V / ...: what a step leaves out shrinks with the step, and the error with both."""
    growing = regression({"start": 2, "full": 8, "gamma": 20.0, "every": "frame"}).mean()
    assert growing < 0.3 * regression(2).mean()
