"""Whole rounds of MOCHA and its baselines against numpy written from the paper (Smith et al. 2017).

The oracle solves each coordinate of the subproblem (4) by a root finder, has W from A of R = tr(W^T A W), and its own
Omega steps. The order of a node's coordinates is drawn as documented, from the node's key (`core.keys`); who was asked
and who answered is read from the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.optimize import brentq
from scipy.special import expit, xlogy
from sklearn.covariance import graphical_lasso
from torch import nn

from answered import Answered, uneven
from polyfed import (
    Callback,
    CoCoA,
    Federation,
    GlobalModel,
    LocalModels,
    MbSDCA,
    MbSGD,
    Mocha,
    Objective,
    Problem,
    Result,
    train,
)
from polyfed.algorithms.base import InverseDecay
from polyfed.algorithms.tasks.regularisers import Clustered, Fixed, Graphical, Independent, Mean, Probabilistic
from polyfed.algorithms.tasks.task_models import TaskModels
from polyfed.core.keys import bits, client_key, key, permutation
from polyfed.layers.faults import Faults
from polyfed.run.callbacks import RunView

Array = np.ndarray
SIZES, D, ROUNDS = (5, 7, 4, 6), 3, 3
M = len(SIZES)
LOSSES = ("hinge", "smoothed-hinge", "squared", "logistic")
G = 0.4  # of the smoothed hinge
SOME = np.array([[2.0, -0.5, 0, 0.3], [-0.5, 1.5, 0.2, 0], [0, 0.2, 1, -0.4], [0.3, 0, -0.4, 1.2]])


def rows(loss: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(sum(SIZES), D))
    z = X @ rng.normal(size=D) + 0.5 * rng.normal(size=len(X))
    return X, z if loss == "squared" else np.where(z > 0, 1.0, -1.0)


# -- the paper in numpy: losses and one coordinate of (4)


def value(loss: str, z: Array, y: Array) -> Array:
    short = np.maximum(0, 1 - y * z)
    middle = np.where(short < G, short**2 / (2 * G), short - G / 2)
    by_name = {
        "hinge": short,
        "smoothed-hinge": middle,
        "squared": (z - y) ** 2 / 2,
        "logistic": np.log1p(np.exp(-y * z)),
    }
    return np.asarray(by_name[loss])


def conjugate(loss: str, beta: Array, y: Array) -> Array:
    """l*(-beta)."""
    b = y * beta
    if loss != "squared":
        assert b.min() >= 0
        assert b.max() <= 1
    by_name: dict[str, Callable[[], Array]] = {
        "hinge": lambda: -b, "smoothed-hinge": lambda: -b + G * b**2 / 2, "squared": lambda: -b + beta**2 / 2,
        "logistic": lambda: xlogy(b, b) + xlogy(1 - b, 1 - b),
    }  # fmt: skip
    return np.asarray(by_name[loss]())


def slope(loss: str, z: Array, y: Array) -> Array:
    by_name = {
        "hinge": np.where(y * z < 1, -y, 0), "smoothed-hinge": -y * np.clip((1 - y * z) / G, 0, 1), "squared": z - y,
        "logistic": -y / (1 + np.exp(y * z)),
    }  # fmt: skip
    return np.asarray(by_name[loss])


def coordinate(loss: str, beta: float, y: float, z: float, q: float) -> float:
    """argmin over beta' of l*(-beta') + z (beta' - beta) + q/2 (beta' - beta)^2, where the derivative has its root."""
    if loss == "squared":
        return float(brentq(lambda v: v - y + z + q * (v - beta), -100, 100, xtol=1e-14))
    b = y * beta
    if loss == "logistic":
        return y * float(
            expit(brentq(lambda r: r + y * z + q * (expit(r) - b), -y * z - q - 1, -y * z + q + 1, xtol=1e-14))
        )

    def derivative(v: float) -> float:
        return -1 + (G * v if loss == "smoothed-hinge" else 0) + y * z + q * (v - b)

    if derivative(0.0) >= 0:
        return 0.0
    return y * (1.0 if derivative(1.0) <= 0 else float(brentq(derivative, 0, 1, xtol=1e-15)))


def order(t: int, node: int, before: int, steps: int, n: int) -> Iterator[int]:
    """Pass after pass over the rows, by Fisher and Yates from the stream of the node's key."""
    stream = bits(key(client_key(0, t, node), "sdca", before) >> 1, steps)
    places = list(range(n))
    for k in range(steps):
        j = k % n
        i = j + int(stream[k] % np.uint64(n - j))
        places[i], places[j] = places[j], places[i]
        yield places[j]


# -- regularisers: A of tr(W^T A W), the first Omega, the Omega step, and what else R has


@dataclass(frozen=True)
class Rule:
    A: Callable[[Array], Array]
    first: Array = field(default_factory=lambda: np.eye(M))
    step: Callable[[Array], Array] | None = None
    alone: Callable[[Array], float] = lambda omega: 0.0
    l1: float = 0.0

    def weights(self, V: Array, omega: Array) -> Array:
        """argmax <V, W> - tr(W^T A W) - l1 |W|_1; with l1, every pattern of signs is tried for every feature."""
        A = self.A(omega)
        if not self.l1:
            return np.asarray(np.linalg.solve(2 * A, V))
        return np.stack([self._lasso(A, v) for v in V.T], 1)

    def _lasso(self, A: Array, v: Array) -> Array:
        best, found = 0.0, np.zeros(len(v))
        for pattern in np.ndindex(*[3] * len(v)):
            sign = np.array(pattern) - 1.0
            on = sign != 0
            w = np.zeros(len(v))
            w[on] = np.linalg.solve(2 * A[np.ix_(on, on)], (v - self.l1 * sign)[on])
            worth = v @ w - w @ A @ w - self.l1 * np.abs(w).sum()
            if (w * sign >= 0).all() and worth > best:
                best, found = worth, w
        return found

    def value(self, W: Array, omega: Array) -> float:
        return float(np.vdot(W, self.A(omega) @ W) + self.l1 * np.abs(W).sum())


def clusters(W: Array, k: int, eta: float) -> Array:
    """Omega of (12): eigenvalues clip(c s - eta, 0, 1) that sum to k, on the left singular vectors of W."""
    squares, U = np.linalg.eigh(W @ W.T)
    s = np.sqrt(np.where(squares > 1e-12 * squares.max(), squares, 0))
    c = brentq(lambda c: np.clip(c * s - eta, 0, 1).sum() - k, 0, 1e9, xtol=1e-15, rtol=1e-15)
    return np.asarray((U * np.clip(c * s - eta, 0, 1)) @ U.T)


def covariance(W: Array) -> Array:
    """Omega of (14), with a floor of 1e-6 of the mean eigenvalue."""
    root = np.real(sqrtm(W @ W.T + 1e-6 * np.trace(W @ W.T) / M * np.eye(M)))
    return np.asarray(root / np.trace(root))


def precision(W: Array) -> Array:
    """Omega of (15), lam = 0.3 and lam2 = 1, the diagonal penalised too."""
    a = 1.0 / (0.3 * D)
    return np.asarray(graphical_lasso(W @ W.T / D + a * np.eye(M), alpha=a, tol=1e-8, enet_tol=1e-8, max_iter=500)[1])


I = np.eye(M)
CENTRED = I - np.ones((M, M)) / M


def graphical(omega: Array) -> Array:
    return np.asarray(0.3 * (I / 9 + omega))


def extra(omega: Array) -> float:
    return float(np.abs(omega).sum() - 0.3 * D * np.linalg.slogdet(omega)[1])


RULES: dict[str, tuple[Any, Rule]] = {
    "independent": (Independent(lam=0.3), Rule(lambda omega: 0.3 * I)),
    "mean": (Mean(lam1=0.5, lam2=0.2), Rule(lambda omega: 0.5 * CENTRED + 0.2 * I, CENTRED)),
    "fixed": (Fixed(omega=SOME.tolist(), lam1=0.4), Rule(lambda omega: 0.4 * SOME, SOME)),
    "clustered": (
        Clustered(lam=0.5, eta=0.3, clusters=2),
        Rule(lambda omega: 0.5 * np.linalg.inv(0.3 * I + omega), I / 2, lambda W: clusters(W, 2, 0.3)),
    ),
    "probabilistic": (
        Probabilistic(lam=0.2, sigma=3.0, floor=1e-6),
        Rule(lambda omega: 0.2 * (I / 9 + np.linalg.inv(omega)), I / M, covariance),
    ),
    "graphical": (Graphical(lam=0.3, sigma=3.0, lam2=1.0), Rule(graphical, I, precision, extra)),
    "graphical-lasso": (
        Graphical(lam=0.3, sigma=3.0, lam1=0.4, lam2=1.0), Rule(graphical, I, precision, extra, 0.4),
    ),
}  # fmt: skip


# -- a run, and the oracle of it


class States(Callback):
    """W, V and Omega after each round."""

    def __init__(self) -> None:
        self.found: list[dict[str, Array]] = []

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        kept = ("W", "V", "omega")
        self.found.append({name: run.state[name].numpy().copy() for name in kept if name in run.state})


@dataclass
class Node:
    """One node in one round: its rows, w_t, s = sigma' Mbar_tt, c and its dual variables."""

    t: int
    id: int
    loss: str
    X: Array
    y: Array
    w: Array
    s: float
    c: float
    start: Array

    def __post_init__(self) -> None:
        self.beta, self.u, self.steps = self.start.copy(), self.w.copy(), 0

    def improve(self, steps: int, live: bool = True) -> None:
        for i in order(self.t, self.id, self.steps, steps, len(self.y)):
            x = self.X[i]
            new = coordinate(self.loss, self.beta[i], self.y[i], float(x @ self.u), self.c * self.s * float(x @ x))
            if live:
                self.u = self.u + self.c * self.s * (new - self.beta[i]) * x
            self.beta[i] = new
        self.steps += steps

    def dv(self) -> Array:
        return np.asarray(self.c * (self.beta - self.start) @ self.X)

    def worth(self) -> float:
        """(4) at what was found."""
        dv = self.dv()
        return float(self.c * conjugate(self.loss, self.beta, self.y).sum() + self.w @ dv + self.s / 2 * dv @ dv)

    def gap(self) -> float:
        z = self.X @ (self.w + self.s * self.dv())
        terms = value(self.loss, z, self.y) + conjugate(self.loss, self.beta, self.y) + self.beta * z
        return float(self.c * terms.sum())


Work = Callable[[Node], None]


@dataclass
class Case:
    """A method, its regulariser as the oracle has it, what a node does, and the world."""

    method: TaskModels
    rule: Rule
    work: Work
    cohort: int | str = "all"
    drop: float = 0.0

    def run(self) -> tuple[Result, Answered, list[dict[str, Array]]]:
        X, y = rows(self.method.loss)
        squared = self.method.loss == "squared"
        problem = Problem(
            nn.Linear(D, 1, bias=False), [Objective("y", "squared" if squared else "binary")], torch.float64
        )
        target = y if squared else (y > 0).astype(np.int64)
        federation = Federation.from_arrays(X, {"y": target}, clients=uneven(SIZES))
        answered, states = Answered(), States()
        result = train(problem, federation, self.method, rounds=ROUNDS, cohort=self.cohort, callbacks=[states],
                       layers=[answered, Faults(drop=self.drop)])  # fmt: skip
        return result, answered, states.found

    def task(self, node: int) -> int:
        return 0 if isinstance(self.method, GlobalModel) else int((self.method.tasks or range(M))[node])

    def c(self, node: int) -> float:
        rows = sum(n for other, n in enumerate(SIZES) if self.task(other) == self.task(node))
        return 1.0 if self.method.loss_scale == "sum" else 1 / rows

    def mine(self, node: int) -> tuple[Array, Array]:
        X, y = rows(self.method.loss)
        some = uneven(SIZES)[node]
        return X[some], y[some]

    def sigma(self, Mbar: Array, asked: list[int]) -> dict[int, float]:
        """(29) with the nodes of each task counted (Remark 4), or each task's own (Remark 5)."""
        method = self.method
        assert isinstance(method, Mocha)
        k = np.zeros(len(Mbar))
        for node in asked:
            k[self.task(node)] += 1
        own = {
            n: method.gamma * float(np.abs(Mbar[self.task(n)]) @ k / Mbar[self.task(n), self.task(n)]) for n in asked
        }
        return own if method.per_task_sigma else dict.fromkeys(asked, max(own.values()))

    def replay(self, atol: float = 1e-9) -> Result:
        """Algorithm 1, lines 5 to 12, with gamma."""
        result, answered, states = self.run()
        method = self.method
        assert isinstance(method, Mocha)
        omega = self.rule.first
        V = W = np.zeros((len(omega), D))
        beta = [np.zeros(n) for n in SIZES]
        past: list[tuple[Array, list[Array]]] = []
        for t, line in enumerate(result.history, 1):
            asked = answered.asked(t, "sdca")
            assert asked == line["cohort"]
            Mbar = np.linalg.inv(self.rule.A(omega)) / 2
            sigma, taken = self.sigma(Mbar, asked), 0
            V = V.copy()
            for node in answered(t, "sdca"):
                s = sigma[node] * Mbar[self.task(node), self.task(node)]
                X, y = self.mine(node)
                local = Node(t, node, method.loss, X, y, W[self.task(node)], s, self.c(node), beta[node])
                self.work(local)
                V[self.task(node)] += method.gamma * local.dv()
                beta[node] = beta[node] + method.gamma * (local.beta - beta[node])
                taken += local.steps
            W = self.rule.weights(V, omega)
            if self.rule.step and method.omega_every and t % method.omega_every == 0:
                omega = self.rule.step(W)
                W = self.rule.weights(V, omega)
            assert (line["answered"], line["steps"]) == (len(answered(t, "sdca")), taken)
            for name, ours in {"V": V, "W": W, "omega": omega}.items():
                np.testing.assert_allclose(states[t - 1][name], ours, rtol=0, atol=atol, err_msg=f"{name} in round {t}")
            past.append((V, list(beta)))
            self.measured(line, omega, past, max(atol, 1e-8))
        return result

    def measured(self, line: dict[str, Any], omega: Array, past: list[tuple[Array, list[Array]]], atol: float) -> None:
        """(1) and (3) at the last iterate, or at the mean of those after H0 (Theorem 2)."""
        method = self.method
        assert isinstance(method, Mocha)
        since = past[method.average_from :] if isinstance(method.average_from, int) else []
        since = since or past[-1:]
        V = np.asarray(sum(v for v, _ in since)) / len(since)
        beta = [np.asarray(sum(b[node] for _, b in since)) / len(since) for node in range(M)]
        W = self.rule.weights(V, omega)
        R = self.rule.value(W, omega)
        loss = dual = 0.0
        for node in range(M):
            X, y = self.mine(node)
            loss += self.c(node) * value(method.loss, X @ W[self.task(node)], y).sum()
            dual -= self.c(node) * conjugate(method.loss, beta[node], y).sum()
        alone = self.rule.alone(omega)
        assert line["primal"] == pytest.approx(loss + R + alone, abs=atol)
        assert line["dual"] == pytest.approx(dual - (float(np.vdot(V, W)) - R) + alone, abs=atol)
        assert line["gap"] == pytest.approx(line["primal"] - line["dual"], abs=1e-12)


def passes(epochs: float) -> Work:
    return lambda node: node.improve(int(np.ceil(epochs * len(node.y))))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("loss", LOSSES)
def test_mocha_with_every_loss_and_regulariser(loss: Any, rule: str) -> None:
    """An Omega step in the second round; scikit-learn's graphical lasso ends within its own tolerance only."""
    chosen, ours = RULES[rule]
    method = Mocha(loss=loss, smoothing=G, regulariser=chosen, epochs=1.6, omega_every=2)
    Case(method, ours, passes(1.6)).replay(1e-4 if "graphical" in rule else 1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("settings", "world"),
    [
        ({"gamma": 0.6}, {"cohort": 2}),
        ({"loss_scale": "mean", "per_task_sigma": True}, {"drop": 0.4}),
        ({"tasks": [0, 1, 1, 2], "per_task_sigma": True, "gamma": 0.8}, {"cohort": 3, "drop": 0.3}),
        ({"tasks": [0, 1, 2, 0], "loss_scale": "mean"}, {}),
        ({"average_from": 1}, {"drop": 0.4}),
    ],
    ids=["gamma", "mean", "shared, own sigma", "shared", "averaged"],
)
def test_mocha_whatever_nodes_do(settings: dict[str, Any], world: dict[str, Any], loss: Any) -> None:
    """Some of the nodes asked, some of those lost, nodes that share a task; lost ones keep their dual variables."""
    m = len(set(settings.get("tasks", range(M))))
    omega = SOME[:m, :m]
    method = Mocha(loss=loss, smoothing=G, regulariser=Fixed(omega=omega.tolist(), lam1=0.4), epochs=0.7, **settings)
    rule = Rule(lambda _: 0.4 * omega, omega)
    Case(method, rule, passes(0.7), **world).replay()


def until(theta: float) -> Work:
    """Passes until g / (G(0) - G + g) <= theta, g the subproblem's duality gap: then Definition 1's is, too."""

    def work(node: Node) -> None:
        first = node.worth()
        while True:
            node.improve(len(node.y))
            if node.gap() <= theta * (first - node.worth() + node.gap()):
                return

    return work


@pytest.mark.parametrize("loss", LOSSES)
def test_cocoa(loss: Any) -> None:
    chosen, ours = RULES["clustered"]
    method = CoCoA(loss=loss, smoothing=G, regulariser=chosen, theta=0.1, omega_every=2)
    result = Case(method, ours, until(0.1), drop=0.2).replay(1e-8)
    assert max(line["steps"] for line in result.history) > sum(SIZES)  # somebody went on


def minibatch(b: int, scale: float) -> Work:
    """Steps from one w_t, scaled by beta over the batch."""

    def work(node: Node) -> None:
        size = min(b, len(node.y))
        node.improve(size, live=False)
        node.beta = node.start + min(scale / size, 1.0) * (node.beta - node.start)

    return work


@pytest.mark.parametrize("loss", LOSSES)
def test_mb_sdca(loss: Any) -> None:
    chosen, ours = RULES["mean"]
    method = MbSDCA(loss=loss, smoothing=G, regulariser=chosen, batch_size=5, beta=2.0)
    Case(method, ours, minibatch(5, 2.0), cohort=3).replay()


@pytest.mark.parametrize("loss", LOSSES)
def test_local_models(loss: Any) -> None:
    method = LocalModels(loss=loss, smoothing=G, regulariser=Independent(lam=0.2), epochs=2)
    Case(method, Rule(lambda omega: 0.2 * I), passes(2), cohort=3, drop=0.2).replay()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", ["sum", "mean"])
def test_global_model(scale: Any, loss: Any) -> None:
    """All nodes share one task: sigma' is the number of nodes asked."""
    method = GlobalModel(loss=loss, smoothing=G, regulariser=Independent(lam=0.2), epochs=1, loss_scale=scale)
    Case(method, Rule(lambda omega: 0.2 * np.eye(1), np.eye(1)), passes(1), cohort=3, drop=0.2).replay()


@pytest.mark.parametrize(
    ("loss", "scale", "rule"),
    [*((loss, scale, "mean") for loss in LOSSES for scale in ("sum", "mean")), *(("hinge", "sum", r) for r in RULES)],
)
def test_mb_sgd(loss: Any, scale: Any, rule: str) -> None:
    """Tasks somebody sent a gradient for take a step of eta_h = beta / h; W starts at 0, and Omega stays."""
    chosen, ours = RULES[rule]
    method = MbSGD(
        loss=loss, smoothing=G, regulariser=chosen, lr=InverseDecay(beta=0.05), batch_size=5, loss_scale=scale
    )
    case = Case(method, ours, lambda node: None, cohort=3, drop=0.2)
    result, answered, states = case.run()
    W = np.zeros((M, D))
    for t in range(1, ROUNDS + 1):
        S = 2 * ours.A(ours.first) @ W + ours.l1 * np.sign(W)
        new = W.copy()
        for node in answered(t, "task-gradient"):
            X, y = case.mine(node)
            some = permutation(key(client_key(0, t, node), "batch"), len(y))[:5]
            g = case.c(node) * len(y) / len(some) * X[some].T @ slope(loss, X[some] @ W[node], y[some])
            new[node] = W[node] - 0.05 / t * (g + S[node])
        W = new
        np.testing.assert_allclose(states[t - 1]["W"], W, rtol=0, atol=1e-10)
        primal = sum(case.c(n) * value(loss, case.mine(n)[0] @ W[n], case.mine(n)[1]).sum() for n in range(M))
        expected = primal + ours.value(W, ours.first) + ours.alone(ours.first)
        assert result.history[t - 1]["primal"] == pytest.approx(expected, abs=1e-8)


def test_theta_is_definition_1() -> None:
    """(5) for the squared loss, whose subproblem has a closed solution: (1 + s X X^T) dalpha = y - alpha - X w."""
    thetas: dict[tuple[int, int], float] = {}

    def work(node: Node) -> None:
        node.improve(3)
        K = node.X @ node.X.T
        best = Node(node.t, node.id, node.loss, node.X, node.y, node.w, node.s, node.c, node.start)
        first = best.worth()
        best.beta = node.start + np.linalg.solve(np.eye(len(K)) + node.s * K, node.y - node.start - node.X @ node.w)
        thetas[node.t, node.id] = (node.worth() - best.worth()) / (first - best.worth())

    chosen, ours = RULES["fixed"]
    result = Case(Mocha(loss="squared", regulariser=chosen, steps=3, measure_theta=True), ours, work, drop=0.3).replay()
    for t, line in enumerate(result.history, 1):
        for node, theta in line["theta"].items():
            assert theta == pytest.approx(thetas.get((t, int(node)), 1.0), abs=1e-5)  # 1: it was lost
