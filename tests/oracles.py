"""What the replays of the papers' methods share: a linear model in numpy, a small min-norm solver, a record of a run.

Nothing here uses the package's own weights or works: a method is replayed from its paper, and the iterates compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyfed import Algorithm, Callback, Faults, Federation, Layer, Objective, Problem, train
from polyfed.models.basic import Point

Array = NDArray[np.float64]
By = Literal["uniform", "size"]
Batches = Mapping[int, Sequence[Sequence[NDArray[np.int64]]]]  # a client's local runs, each a list of rows per step


@dataclass(frozen=True)
class World:
    """Clients with rows of their own and one linear model z = X w; objective s compares z with column s of Y.

    Even objectives have squared losses, odd ones logistic losses of labels in {0, 1}, so that not all is quadratic.

    Args:
        X: each client's rows (n_i, d).
        Y: each client's targets (n_i, M).
        holds: the matrix A, clients x objectives.
        start: the first iterate.
    """

    X: tuple[Array, ...]
    Y: tuple[Array, ...]
    holds: NDArray[np.bool_]
    start: Array

    @property
    def names(self) -> list[str]:
        return [f"f{s}" for s in range(self.holds.shape[1])]

    def loss(self, i: int, s: int, w: Array) -> float:
        """f_si(w), the mean over all of the client's rows."""
        z, y = self.X[i] @ w, self.Y[i][:, s]
        return float(np.mean(np.logaddexp(0, z) - y * z if s % 2 else (z - y) ** 2))

    def grad(self, i: int, s: int, w: Array, rows: Any = slice(None)) -> Array:
        """grad f_si(w) over some of the client's rows."""
        X, y = self.X[i][rows], self.Y[i][rows, s]
        z = X @ w
        slope = 1 / (1 + np.exp(-z)) - y if s % 2 else 2 * (z - y)
        return np.asarray(X.T @ slope / len(X))

    def shares(self, clients: Sequence[int], by: By) -> Array:
        """a_i: 1, or the number of examples."""
        return np.array([len(self.X[i]) if by == "size" else 1 for i in clients], dtype=float)

    def problem(self) -> Problem:
        model = nn.Linear(len(self.start), 1, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(self.start).reshape(1, -1))
        objectives = [Objective(n, "binary" if s % 2 else "squared") for s, n in enumerate(self.names)]
        return Problem(model, objectives, torch.float64)

    def federation(self) -> Federation:
        """The clients, and two rows at the server: evaluation asks nobody."""
        X, Y = np.concatenate(self.X), np.concatenate(self.Y)
        ends = np.cumsum([len(rows) for rows in self.X])
        lists = [np.arange(end - len(rows), end) for end, rows in zip(ends, self.X, strict=True)]
        targets = {name: Y[:, s] for s, name in enumerate(self.names)}
        blank = np.zeros((2, X.shape[1])), {name: np.zeros(2) for name in self.names}
        holds = {name: self.holds[:, s] for s, name in enumerate(self.names)}
        return Federation.from_arrays(X, targets, clients=lists, test=blank, holds=holds)

    def pooled(self) -> World:
        """One client with everybody's rows."""
        return World((np.concatenate(self.X),), (np.concatenate(self.Y),), self.holds[:1] | True, self.start)

    def spoilt(self, client: int) -> World:
        """The same, but that the client's work fails: its rows are so large that losses and gradients overflow."""
        return replace(self, X=tuple(x * 1e200 if i == client else x for i, x in enumerate(self.X)))


SIZES = (4, 9, 6, 5, 12)
PARTIAL = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=bool)


def world(objectives: int = 3, holds: Any = None, sizes: Sequence[int] = SIZES, dim: int = 7, seed: int = 0) -> World:
    """Clients that differ: each has a centre, and targets from a linear map of its own."""
    rng = np.random.default_rng(seed)
    X = tuple(rng.normal(size=(n, dim)) + rng.normal(size=dim) / 2 for n in sizes)
    maps = rng.normal(size=(dim, objectives)) + rng.normal(size=(len(sizes), dim, objectives)) / 2
    raw = [x @ m for x, m in zip(X, maps, strict=True)]
    odd = np.arange(objectives) % 2 == 1
    Y = tuple(np.where(odd, y > 0, y) for y in raw)
    A = np.ones((len(sizes), objectives), dtype=bool) if holds is None else np.asarray(holds)[:, :objectives]
    return World(X, Y, A, rng.normal(size=dim))


# a run, and what is known of it


@dataclass(frozen=True)
class Setting:
    """How a federation takes part.

    Args:
        cohort: clients a round.
        by: what a client counts in a mean.
        holds: the matrix A; all ones if not given.
        lost: whether one client never answers ('silent'), or its work fails ('failing').
    """

    cohort: Any = "all"
    by: By = "uniform"
    holds: Any = None
    lost: Literal["", "silent", "failing"] = ""

    def __str__(self) -> str:
        held = "everything" if self.holds is None else "partial"
        return f"{self.cohort}-{self.by}-{held}-{self.lost or 'nobody lost'}"


SETTINGS = [  # every two choices meet
    Setting(), Setting("all", "size", PARTIAL), Setting(3, "uniform", PARTIAL), Setting(3, "size"),
    Setting("all", "uniform", PARTIAL, "silent"), Setting("all", "size", None, "failing"),
    Setting(3, "uniform", PARTIAL, "failing"), Setting(3, "size", None, "silent"),
]  # fmt: skip
LOST = 1  # who is lost, where somebody is


class Iterates(Callback):
    """x_0, x_1, ..."""

    def __init__(self, start: Array) -> None:
        self.x: list[Array] = [start]

    def on_round(self, run: Any, line: Mapping[str, Any]) -> None:
        self.x.append(run.state["x"].numpy().copy())


class Record(Iterates):
    """Every round's iterate, line and local batches; the batches come from the hook for augmented rows."""

    def __init__(self, about: World, pooled: bool = False) -> None:
        super().__init__(about.start)
        owner = [0] * len(about.X) if pooled else range(len(about.X))
        start = np.cumsum([0, *(len(X) for X in about.X)]) if pooled else [0] * len(about.X)
        self._whose = {
            row.tobytes(): (owner[i], int(start[i]) + r) for i, X in enumerate(about.X) for r, row in enumerate(X)
        }
        self._steps: dict[int, list[NDArray[np.int64]]] = {}
        self.lines: list[Mapping[str, Any]] = []
        self.steps: list[dict[int, list[NDArray[np.int64]]]] = []

    def noted(self, x: Tensor, key: Any) -> Tensor:
        """A training batch, unchanged; the trial before the run, whose key is 0, is none."""
        if not key:
            return x
        found = [self._whose[row.tobytes()] for row in x.numpy()]
        self._steps.setdefault(found[0][0], []).append(np.array([row for _, row in found]))
        return x

    def on_round(self, run: Any, line: Mapping[str, Any]) -> None:
        super().on_round(run, line)
        self.lines.append(line)
        self.steps.append(self._steps)
        self._steps = {}

    def heard(self, t: int, setting: Setting) -> list[int]:
        """Who answered in round t: those asked, but for the silent and those whose work failed."""
        line = self.lines[t]
        gone = {LOST} if setting.lost == "silent" else {failure["client"] for failure in line["failures"]}
        assert gone <= {LOST} if setting.lost else not gone
        return [client for client in line["cohort"] if client not in gone]

    def runs(self, t: int, length: int) -> Batches:
        """The batches of round t, a client's cut into local runs of so many steps."""
        return {
            client: [steps[k : k + length] for k in range(0, len(steps), length)]
            for client, steps in self.steps[t].items()
        }


def run(
    about: World, method: Algorithm, setting: Setting | None = None, rounds: int = 3, layers: Sequence[Layer] = ()
) -> Record:
    """A run of the package over this world."""
    setting = setting or Setting()
    record = Record(about, method.pooled)
    there = about.spoilt(LOST) if setting.lost == "failing" else about
    silent = [Faults(silent=[LOST])] if setting.lost == "silent" else []
    federation = replace(there.federation(), augment=record.noted)
    train(
        there.problem(), federation, method, rounds=rounds, cohort=setting.cohort, layers=[*layers, *silent],
        callbacks=[record], evaluate={"every": rounds}, guard="off" if layers else "on",  # attackers are let in
    )  # fmt: skip
    assert not setting.lost or any(LOST in line["cohort"] for line in record.lines)
    return record


# solvers, by brute force


def shortest(vectors: Array, centre: Array | None = None, eps: float = 1.0) -> Array:
    """argmin |sum_i lambda_i v_i|^2 over the simplex, |lambda - centre|_inf <= eps: the best of all faces' points.

    Every weight is at its lower bound, at its upper bound, or free; all choices are tried.
    """
    m = len(vectors)
    around = np.full(m, 1 / m) if centre is None else centre
    low, high = np.maximum(around - eps, 0.0), np.minimum(around + eps, 1.0)
    G = vectors @ vectors.T
    G = G / max(np.trace(G), 1e-300)
    best, least = around, np.inf
    for face in product((-1, 0) if (high >= 1).all() else (-1, 0, 1), repeat=m):
        where = np.array(face)
        lam, free = np.where(where < 0, low, high), where == 0
        lam[free] = _stationary(G, lam, free)
        inside = abs(lam.sum() - 1) < 1e-9 and (lam >= low - 1e-10).all() and (lam <= high + 1e-10).all()
        if inside and lam @ G @ lam < least:
            best, least = lam, lam @ G @ lam
    return best


def _stationary(G: Array, lam: Array, free: NDArray[np.bool_]) -> Array:
    """The free weights at which |sum lambda v|^2 is stationary while all sum to 1."""
    k = int(free.sum())
    system = np.block([[G[np.ix_(free, free)], np.ones((k, 1))], [np.ones((1, k)), np.zeros((1, 1))]])
    right = np.append(-G[np.ix_(free, ~free)] @ lam[~free], 1 - lam[~free].sum())
    return np.asarray(np.linalg.lstsq(system, right, rcond=None)[0][:k])


def nearest_mixture(v: Array, total: float) -> Array:
    """The nearest point with non-negative entries that sum to a total: max(v - tau, 0), tau by bisection."""
    low, high = v.min() - total, v.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(v - tau, 0).sum() > total else (low, tau)
    return np.asarray(np.maximum(v - (low + high) / 2, 0))


# bare points, for theorems


def points(losses: Sequence[Any], centres: Array, start: Array) -> tuple[Problem, Federation]:
    """A point w and, for objective s and each row, losses[s](w - centre); centres (clients, rows, objectives, dim)."""
    clients, rows, objectives, dim = centres.shape
    flat = torch.from_numpy(centres.reshape(-1, objectives, dim))

    def shifted(loss: Any) -> Any:
        return lambda w, centre: loss(w - centre)

    every = [Objective(f"f{s}", shifted(loss), {}) for s, loss in enumerate(losses)]
    problem = Problem(Point(dim), every, torch.float64)
    with torch.no_grad():
        problem.model.get_parameter("w").copy_(torch.from_numpy(start))
    lists = np.arange(clients * rows).reshape(clients, rows)
    targets = {f"f{s}": flat[:, s] for s in range(objectives)}
    return problem, Federation.from_arrays(np.zeros((len(flat), 1)), targets, clients=list(lists))


def exponent(sizes: Sequence[float], values: Any) -> float:
    """p of values ~ sizes^p, by least squares in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def column(history: Sequence[Mapping[str, Any]], name: str) -> Array:
    """A figure of every round; of a table, its entries side by side."""
    return np.array([list(line[name].values()) if isinstance(line[name], dict) else line[name] for line in history])


def quadratic(A: Array) -> Any:
    """z^T A z / 2 for each row z."""
    matrix = torch.from_numpy(A)
    return lambda z: ((z @ matrix) * z).sum(1) / 2


def hessian(eigenvalues: Sequence[float], seed: int) -> Array:
    """A symmetric matrix with these eigenvalues, turned at random."""
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(eigenvalues), len(eigenvalues))))[0]
    return np.asarray(Q * np.array(eigenvalues) @ Q.T)


def dent(z: Tensor) -> Tensor:
    """sum_j z_j^2 / (1 + z_j^2): smooth (L = 2), not convex, with slopes of at most 3 sqrt(3) / 8 an entry."""
    return (z * z / (1 + z * z)).sum(1)


DENT_L, DENT_SLOPE = 2.0, 3 * np.sqrt(3) / 8
