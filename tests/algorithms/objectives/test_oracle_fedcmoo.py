"""Whole rounds of FedCMOO and FedCMOO-Pref against numpy written from the paper (Askin et al. 2025).

The oracle has its own gradients, weights and linear program. It reads from the run who was asked and who answered, and
draws a compressor's hash, mask or start as documented, from the round's and the clients' keys (`core.keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from answered import Answered, Iterates, uneven
from polyfed import FedCMOO, FedCMOOPref, Federation, Objective, Problem, Result, train
from polyfed.core.keys import bits, client_key, common_key, key
from polyfed.layers.faults import Faults
from polyfed.models import Headed

Array = np.ndarray
NAMES, FEATURES, HIDDEN = ("a", "b", "c"), 4, 2
M, SHARED = len(NAMES), HIDDEN * FEATURES
SIZES = (5, 9, 7, 12, 4, 8)
ALL = np.ones((6, 3), dtype=bool)
SOME = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0]], dtype=bool)
RARE = np.array([[1, 1, 0]] * 5 + [[0, 1, 1]], dtype=bool)  # c is often held by nobody in the cohort
PARTS = uneven(SIZES)
ROUNDS, LR, SERVER_LR, STEPS = 3, 0.05, 1.3, 3


@cache
def rows() -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(sum(SIZES), FEATURES))
    return X, X @ rng.normal(size=(FEATURES, M)) + 0.3 * rng.normal(size=(len(X), M))


def problem() -> Problem:
    torch.manual_seed(4)
    body = nn.Linear(FEATURES, HIDDEN, bias=False)
    heads = {name: nn.Linear(HIDDEN, 1, bias=False) for name in NAMES}
    return Problem(Headed(body, heads), [Objective(name, "squared") for name in NAMES], torch.float64)


# -- the paper in numpy


def gradients(x: Array, client: int, holds: Array) -> tuple[Array, Array]:
    """The client's Jacobian (M, d) and losses of f_s = mean (v_s^T B x - y_s)^2; 0 for what it does not hold."""
    X, Y = rows()
    mine = PARTS[client]
    X, Y = X[mine], Y[mine]
    B, v = x[:SHARED].reshape(HIDDEN, FEATURES), x[SHARED:].reshape(M, HIDDEN)
    J, losses = np.zeros((M, len(x))), np.zeros(M)
    for s in np.flatnonzero(holds[client]):
        e = X @ B.T @ v[s] - Y[:, s]
        pull = 2 * X.T @ e / len(X)
        J[s, :SHARED] = np.outer(v[s], pull).ravel()
        J[s, SHARED + s * HIDDEN : SHARED + (s + 1) * HIDDEN] = B @ pull
        losses[s] = (e**2).mean()
    return J, losses


def shortest(G: Array) -> Array:
    """argmin w^T G w over the simplex: the best over all supports of the point where G w = nu on the support."""
    best, found = np.inf, np.zeros(len(G))
    for size in range(1, len(G) + 1):
        for some in map(list, combinations(range(len(G)), size)):
            one = np.ones((size, 1))
            bordered = np.block([[G[np.ix_(some, some)], -one], [one.T, np.zeros((1, 1))]])
            w = np.zeros(len(G))
            w[some] = np.linalg.lstsq(bordered, np.eye(size + 1)[-1], rcond=None)[0][:-1]
            if w.min() >= 0 and w @ G @ w < best:
                best, found = float(w @ G @ w), w
    return found


def projected(v: Array) -> Array:
    """The nearest point of the simplex, max(v - theta, 0) with theta by halving."""
    low, high = v.min() - 1, v.max()
    for _ in range(60):
        theta = (low + high) / 2
        low, high = (theta, high) if np.maximum(v - theta, 0).sum() > 1 else (low, theta)
    return np.asarray(np.maximum(v - high, 0))


def found_by_steps(G: Array, w: Array, steps: int, step: float, normalise: bool) -> Array:
    """Algorithm 2; the division is the authors' code's."""
    beta = step / np.sqrt(G.diagonal() + 1e-4).mean() ** 2 if normalise else step
    for _ in range(steps):
        w = projected(w - beta * G @ w)
    return w


def preferred(G: Array, F: Array, r: Array, band: float, threshold: float) -> Array:
    """Algorithm 8 by looking at every vertex of the program's feasible set."""
    M = len(r)
    u = r * F / (r * F).sum()
    mu = float((u * np.log(u * M)).sum())
    a = r * (np.log(u * M) - mu)
    Ga = G @ a
    if mu > threshold:
        gain, worst = a, r * F >= band * (r * F).max()
        floor = {k: 0.0 if worst[k] or not (Ga > 0).any() else Ga[k] for k in range(M) if worst[k] or Ga[k] <= 0}
    else:
        gain, floor = np.ones(M), dict.fromkeys(range(M), 0.0)
    faces = [(np.eye(M)[k], 0.0) for k in range(M)] + [(G[k], least) for k, least in floor.items()]
    best, found = -np.inf, None
    for some in combinations(faces, M - 1):
        A, b = np.array([np.ones(M), *(row for row, _ in some)]), np.array([1.0, *(value for _, value in some)])
        if abs(np.linalg.det(A / np.linalg.norm(A, axis=1)[:, None])) < 1e-12:
            continue
        w = np.linalg.solve(A, b)
        if all(row @ w >= value - 1e-9 * np.linalg.norm(row) for row, value in faces) and w @ G @ gain > best:
            best, found = float(w @ G @ gain), w
    assert found is not None
    return found


# -- compressors: (Jacobian, round, own key) -> what the server has of it


Sent = Callable[[Array, int, int], Array]
Weigh = Callable[[Array, Array, Array, Array], Array]


def own(t: int, client: int, draw: int = 0) -> int:
    return key(client_key(0, t, client), "compress", *([draw] if draw else []))


def exact(H: Array, t: int, of: int) -> Array:
    return H


def top(budget: float) -> Sent:
    """Values and places cost `budget` models together."""

    def sent(H: Array, t: int, of: int) -> Array:
        k = int(budget * H.shape[1] / 2)
        least = np.sort(np.abs(H).ravel())[-k]
        return np.where(np.abs(H) >= least, H, 0.0)

    return sent


def masked(budget: float) -> Sent:
    def sent(H: Array, t: int, of: int) -> Array:
        k = int(budget * H.shape[1])
        places = np.sort(np.argsort(bits(of, H.size).view(np.int64))[:k])
        out = np.zeros(H.size)
        out[places] = H.ravel()[places] * H.size / k
        return out.reshape(H.shape)

    return sent


def svd(budget: float) -> Sent:
    """Rank r of the padded square, in the range of (A A^T)^2 A times a Gaussian matrix of r + 1 columns."""

    def sent(H: Array, t: int, of: int) -> Array:
        side = int(np.ceil(np.sqrt(H.size)))
        r = int(budget * H.shape[1] / (2 * side))
        A = np.pad(H.ravel(), (0, side * side - H.size)).reshape(side, side)
        width = min(side, r + max(1, r // 10))
        even, odd = ((bits(of, 2 * side * width) >> np.uint64(40)) / 2**24).reshape(side, width, 2).transpose(2, 0, 1)
        start = np.sqrt(-2 * np.log(1 - even)) * np.cos(2 * np.pi * odd)
        Q = np.linalg.qr(A @ A.T @ A @ A.T @ A @ start)[0]
        U, s, Vt = np.linalg.svd(Q @ (Q.T @ A))
        low = np.asarray((U[:, :r] * s[:r]) @ Vt[:r])
        return low.ravel()[: H.size].reshape(H.shape)

    return sent


def sketched(width: int) -> Sent:
    """The high bits of a coordinate's hash choose its bucket, the lowest its sign; one hash for all of a round."""

    def sent(H: Array, t: int, of: int) -> Array:
        z: Any = bits(common_key(0, t), H.shape[1])
        bucket, sign = (z >> np.uint64(1)) % np.uint64(width), (z & np.uint64(1)).astype(float) * 2 - 1
        return np.asarray(np.stack([(H * sign)[:, bucket == b].sum(1) for b in range(width)], 1))

    return sent


# -- a run, and the oracle of it


@dataclass
class World:
    """Who holds what, how many take part, who is lost; and what the oracle does where the method has a choice.

    weigh: from G, the last weights and the losses of the objectives heard of, and which they are, to their weights.
    """

    sent: Sent = exact
    weigh: Weigh = field(default=lambda G, w, F, here: shortest(G))
    holds: Array = field(default_factory=lambda: ALL)
    cohort: int | str = 4
    drop: float = 0.0

    def run(self, method: FedCMOO) -> Run:
        X, Y = rows()
        targets = {name: Y[:, s] for s, name in enumerate(NAMES)}
        held = {name: self.holds[:, s] for s, name in enumerate(NAMES)}
        federation = Federation.from_arrays(X, targets, clients=PARTS, holds=held)
        answered, iterates, start = Answered(), Iterates(), problem()
        x0 = start.initial()["x"].numpy().copy()
        layers = [answered, Faults(drop=self.drop)]
        result = train(start, federation, method, rounds=ROUNDS, cohort=self.cohort, layers=layers,
                       callbacks=[iterates], evaluate={"every": ROUNDS})  # fmt: skip
        a = np.array(SIZES, dtype=float) if method.weighting_by == "size" else np.ones(len(SIZES))
        return Run(self, method, result, answered, iterates.x, x0, a)


@dataclass
class Run:
    """What a run left, and the paper's steps for it."""

    world: World
    method: FedCMOO
    result: Result
    answered: Answered
    x: Array
    x0: Array
    a: Array

    def total(self, clients: list[int]) -> Array:
        """W_s: the weights of those who hold s; 1 where nobody does, as nothing is divided by it then."""
        W = self.a[clients] @ self.world.holds[clients]
        return np.where(W > 0, W, 1.0)

    def heard(self, clients: list[int]) -> Array:
        return np.asarray(self.world.holds[clients].any(0))

    def seen(self, x: Array, i: int) -> Array:
        """The client's Jacobian over the parameters that G is about."""
        J = gradients(x, i, self.world.holds)[0]
        return J[:, :SHARED] if self.method.gram_over == "shared" else J

    def sent(self, x: Array, t: int, i: int, draw: int = 0) -> Array:
        """What the server has of client i's Jacobian: nothing of what it does not hold, whatever compressing leaks."""
        return np.asarray(self.world.sent(self.seen(x, i), t, own(t, i, draw)) * self.world.holds[i][:, None])

    def mean(self, x: Array, t: int, clients: list[int], draw: int = 0) -> Array:
        """Row s: the mean of what those who hold s have sent of its gradient."""
        total = sum(self.a[i] * self.sent(x, t, i, draw) for i in clients)
        return np.asarray(total / self.total(clients)[:, None])

    def losses(self, x: Array, clients: list[int]) -> Array:
        total = sum(self.a[i] * gradients(x, i, self.world.holds)[1] for i in clients)
        return np.asarray(total / self.total(clients))

    def weights(self, G: Array, before: Array, F: Array, here: Array) -> Array:
        """Among the objectives heard of; the others have 0."""
        w = np.zeros(M)
        w[here] = self.world.weigh(G[np.ix_(here, here)], before[here], F[here], here)
        return w

    def stepped(self, x: Array, w: Array, asked: list[int], back: list[int]) -> Array:
        """Lines 8 to 14 of Algorithm 1 with omega_s = w_s W / W_s over those asked; the mean is of those who return."""
        omega = w * self.heard(asked) * self.a[asked].sum() / self.total(asked)
        delta = np.zeros_like(x)
        for i in back:
            y = x.copy()
            for _ in range(STEPS):
                y -= LR * omega @ gradients(y, i, self.world.holds)[0]
            delta += self.a[i] * (x - y) / self.a[back].sum()
        return x - SERVER_LR * delta

    def two_way(self, x: Array, t: int, clients: list[int]) -> Array:
        """[sum Ht^T Ht + S^T S - sum H^T H + C + C^T] / (W_s W_t); who is lost on the way back is not corrected."""
        true = {i: self.a[i] * self.seen(x, i) for i in clients}
        H = {i: self.a[i] * self.sent(x, t, i) for i in clients}
        S = np.asarray(sum(H.values()))
        h = self.world.sent(S, t, key(0, "compress"))
        G = S @ S.T
        for i in self.answered(t, "residual"):
            C = (true[i] - H[i]) @ (h - H[i]).T
            G = G + true[i] @ true[i].T - H[i] @ H[i].T + C + C.T
        return clipped(G / np.outer(self.total(clients), self.total(clients)))

    def client_grams(self, x: Array, clients: list[int]) -> Array:
        """The mean of the clients' own Gram matrices."""
        J = {i: self.seen(x, i) for i in clients}
        total = np.asarray(sum(self.a[i] * J[i] @ J[i].T for i in clients))
        return total / np.sqrt(np.outer(self.total(clients), self.total(clients)))

    def gram(self, x: Array, t: int, clients: list[int]) -> Array:
        if self.method.compress == "client-grams":
            return self.client_grams(x, clients)
        Y = self.mean(x, t, clients)
        return self.two_way(x, t, clients) if self.method.ways == 2 else Y @ Y.T

    def agrees(self, found: list[Array], weights: list[Array]) -> None:
        np.testing.assert_allclose(self.x, found, rtol=0, atol=1e-9)
        logged = [[line["weights"][name] for name in NAMES] for line in self.result.history]
        np.testing.assert_allclose(logged, weights, rtol=0, atol=1e-8)
        assert np.abs(np.diff([self.x0, *found], axis=0)).max(1).min() > 1e-4  # every round trained


def clipped(G: Array) -> Array:
    """G without negative eigenvalues after scaling the gradients to length one.

    Where |G_st| is above the product of the lengths, it stands in for the square of both.
    """
    n = np.sqrt(np.maximum(G.diagonal(), 0.0))
    breaks = np.where(np.abs(G) > (1 + 1e-6) * np.outer(n, n), np.abs(G), 0.0)
    n = np.sqrt(np.maximum(n**2, breaks.max(1)))
    scale = np.outer(n, n) + (np.outer(n, n) == 0)
    values, vectors = np.linalg.eigh(G / scale)
    return np.asarray((vectors * np.maximum(values, 0)) @ vectors.T * np.outer(n, n))


def replay_two(run: Run) -> None:
    """Algorithm 1: Jacobians, weights, then training; G by Algorithm 3, 6 or 9."""
    x, remembered, found, weights = run.x0, np.full(M, 1 / M), [], []
    for t in range(1, ROUNDS + 1):
        if run.method.gram == "two-sets":
            sets = [run.answered(t, "jacobian", j) for j in (0, 1)]
            Y = [run.mean(x, t, some, draw) for draw, some in enumerate(sets, 1)]
            G, here, F = Y[0] @ Y[1].T, run.heard(sets[0]) & run.heard(sets[1]), run.losses(x, sets[0] + sets[1])
            asked = run.answered.asked(t, "sgd")
        else:
            asked = run.answered(t, "jacobian")
            G, here, F = run.gram(x, t, asked), run.heard(asked), run.losses(x, asked)
        w = run.weights(G, remembered, F, here)
        remembered = np.where(here, w, remembered)
        back = run.answered(t, "sgd")
        assert run.result.history[t - 1]["lost_between"] == len(asked) - len(back)
        x = run.stepped(x, w, asked, back)
        found.append(x)
        weights.append(w)
    run.agrees(found, weights)


def replay_one(run: Run) -> None:
    """One exchange: trained with the last weights, brought to the objectives at hand; new ones for the next round."""
    x, kept, remembered, found, weights = run.x0, np.full(M, 1 / M), np.full(M, 1 / M), [], []
    for t in range(1, ROUNDS + 1):
        asked, back = run.answered.asked(t, "sgd-jacobian"), run.answered(t, "sgd-jacobian")
        w = np.where(run.heard(asked), kept if kept[run.heard(asked)].any() else 1.0, 0.0)
        w /= w.sum()
        here = run.heard(back)
        fresh = run.weights(run.gram(x, t, back), remembered, run.losses(x, back), here)
        remembered = np.where(here, fresh, remembered)
        mixed = np.where(here, run.method.ema * w + (1 - run.method.ema) * fresh, 0.0)
        kept = np.where(here, (1 - kept[~here].sum()) * mixed / mixed.sum(), kept)
        x = run.stepped(x, w, asked, back)
        found.append(x)
        weights.append(w)
    run.agrees(found, weights)


LOCAL: dict[str, Any] = {"lr": LR, "server_lr": SERVER_LR, "local_steps": STEPS, "batch_size": 0}
COMPRESSORS: dict[str, tuple[Any, Sent]] = {
    "exact": ("exact", exact),
    "top-k": ({"name": "top-k", "budget": 3.0}, top(3.0)),
    "random-mask": ({"name": "random-mask", "budget": 2.0}, masked(2.0)),
    "rand-svd": ({"name": "rand-svd", "budget": 3.0}, svd(3.0)),
    "sketch": ({"name": "sketch", "width": 5}, sketched(5)),
    "client-grams": ("client-grams", exact),
}
WORLDS: dict[str, dict[str, Any]] = {
    "everybody": {"cohort": "all"},
    "some are lost": {"holds": SOME, "cohort": 5, "drop": 0.3},
    "one is rare": {"holds": RARE, "cohort": 2},
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("compress", COMPRESSORS)
def test_algorithm_1_with_every_compressor(compress: str, world: str) -> None:
    name, sent = COMPRESSORS[compress]
    run = World(sent, **WORLDS[world]).run(FedCMOO(compress=name, weighting_by="size", **LOCAL))
    assert world != "some are lost" or sum(line["lost_between"] for line in run.result.history) > 0
    replay_two(run)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("over", ["all", "shared"])
@pytest.mark.parametrize("by", ["uniform", "size"])
def test_algorithm_1_over_all_parameters_or_those_shared(by: Any, over: Any, world: str) -> None:
    replay_two(World(**WORLDS[world]).run(FedCMOO(compress="exact", gram_over=over, weighting_by=by, **LOCAL)))


@pytest.mark.parametrize(
    ("compress", "world"),
    [(name, world) for name in ("exact", "top-k", "random-mask", "rand-svd") for world in WORLDS],
)
def test_algorithm_6_two_ways(compress: str, world: str) -> None:
    """Who is lost between the exchanges is left uncorrected in G, and out of the mean of the updates."""
    name, sent = COMPRESSORS[compress]
    replay_two(World(sent, **WORLDS[world]).run(FedCMOO(compress=name, ways=2, weighting_by="size", **LOCAL)))


STEPPED: dict[str, dict[str, Any]] = {
    "as printed": {"steps": 20, "step": 0.02, "normalise": False},
    "authors' division": {"steps": 30, "step": 0.1, "normalise": True},
    "one step": {"steps": 1, "step": 0.1, "normalise": False},
}


def by_steps(how: dict[str, Any]) -> Weigh:
    return lambda G, w, F, here: found_by_steps(G, w, **how)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("how", STEPPED)
def test_algorithm_2_from_the_last_rounds_weights(how: str, world: str) -> None:
    method = FedCMOO(compress="exact", weighting={"name": "pgd", **STEPPED[how]}, **LOCAL)
    replay_two(World(weigh=by_steps(STEPPED[how]), **WORLDS[world]).run(method))


@pytest.mark.parametrize("world", ["everybody", "some are lost"])
@pytest.mark.parametrize("compress", ["exact", "random-mask", "sketch"])
def test_algorithm_10_two_sets(compress: str, world: str) -> None:
    name, sent = COMPRESSORS[compress]
    method = FedCMOO(gram="two-sets", gram_clients=4, compress=name, weighting={"name": "pgd", **STEPPED["one step"]},
                     **LOCAL)  # fmt: skip
    replay_two(World(sent, by_steps(STEPPED["one step"]), **WORLDS[world]).run(method))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("compress", "by", "ema"), [("exact", "size", 0.0), ("sketch", "uniform", 0.6), ("top-k", "size", 0.3)]
)
def test_one_exchange(compress: str, by: Any, ema: float, world: str) -> None:
    name, sent = COMPRESSORS[compress]
    replay_one(World(sent, **WORLDS[world]).run(FedCMOO(compress=name, exchanges=1, ema=ema, weighting_by=by, **LOCAL)))


def test_one_exchange_by_steps() -> None:
    method = FedCMOO(compress="exact", exchanges=1, weighting={"name": "pgd", **STEPPED["as printed"]}, **LOCAL)
    replay_one(World(weigh=by_steps(STEPPED["as printed"]), holds=RARE, cohort=2).run(method))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("exchanges", [1, 2])
@pytest.mark.parametrize(
    ("r", "band", "threshold", "min_weight"),
    [((1.0, 1.0, 1.0), 1.0, 0.01, 0.0), ((1.0, 4.0, 0.5), 0.9, 0.01, 0.2), ((2.0, 1.0, 3.0), 0.7, 10.0, 0.1)],
)
def test_algorithm_8_preferences(
    r: tuple[float, ...], band: float, threshold: float, min_weight: float, exchanges: Any, world: str
) -> None:
    """A threshold of 10 is never passed: all rounds descend."""

    def weigh(G: Array, w: Array, F: Array, here: Array) -> Array:
        return (1 - min_weight) * preferred(G, F, np.array(r)[here], band, threshold) + min_weight / len(G)

    method = FedCMOOPref(preference=dict(zip(NAMES, r, strict=True)), band=band, threshold=threshold,
                         min_weight=min_weight, compress="exact", exchanges=exchanges, **LOCAL)  # fmt: skip
    run = World(weigh=weigh, **WORLDS[world]).run(method)
    (replay_two if exchanges == 2 else replay_one)(run)
    modes = {line["mode"] for line in run.result.history}
    assert modes == {"descent"} if threshold == 10 else "balance" in modes
    assert all(line["feasible"] for line in run.result.history)
