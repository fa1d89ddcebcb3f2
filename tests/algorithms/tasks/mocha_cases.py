"""Small multi-task problems, and generic solvers that know nothing of MOCHA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import piqp
from scipy.optimize import minimize

from polyfed.algorithms.tasks.task_models import TaskModels
from polyfed.core.client import ClientState, RowClient
from polyfed.core.door import Door
from polyfed.core.fleet import PartFleet
from polyfed.core.layer import Layer, Layers
from polyfed.core.messages import Request
from polyfed.core.work import Arrays, work
from polyfed.tasks.engine import ArrayEngine, open_door
from polyfed.work.linear.examples import Examples, as_examples
from polyfed.work.linear.losses import find
from polyfed.work.sdca import begin

LossName = Literal["hinge", "smoothed-hinge", "logistic", "squared"]
LOSSES: tuple[LossName, ...] = get_args(LossName)


def tasks(loss: str = "hinge", m: int = 4, d: int = 5, n: int = 12, seed: int = 0) -> list[Examples]:
    """Tasks of different sizes with a common part."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=d)
    made = []
    for t in range(m):
        X = rng.normal(size=(n + 2 * t, d))
        z = X @ (common + 0.5 * rng.normal(size=d)) + 0.5 * rng.normal(size=len(X))
        made.append(as_examples(X, z if loss == "squared" else np.where(z > 0, 1.0, -1.0), find(loss)))
    return made


def solve(
    examples: list[Examples],
    method: TaskModels,
    *,
    rounds: int = 2000,
    gap: float = 1e-9,
    layer: Layer | None = None,
    each: Callable[[int, dict[str, Any], ArrayEngine, Door], None] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rounds until the gap is small: the last state and its primal, dual and gap."""
    engine, fleet = open_door(examples)
    if layer is not None:
        assert isinstance(fleet.inner, PartFleet)
        fleet = Door(Layers((layer,)).fleet(fleet.inner), fleet.problem, cohort=len(examples))
    state: dict[str, Any] = dict(fleet.problem.initial())
    found: dict[str, Any] = {}
    for t in range(1, rounds + 1):
        fleet.begin(t)
        state, _ = method.round(t, state, fleet)
        if each is not None:
            each(t, state, engine, fleet)
        if t % 5 == 0 or t == rounds:
            found = method.measure(state, fleet)
            if found.get("gap", 1.0) <= gap:
                break
    return state, found


@dataclass(frozen=True)
class Length:
    """How many dual variables a node has."""

    n: int


@work("mocha-test-duals", reply={"beta": "n:float64"}, options=Length, needs="rows", state=begin, measures=True)
def duals(client: RowClient, request: Request, options: Length, state: ClientState) -> tuple[Arrays, ClientState]:
    return {"beta": state["beta"]}, state


def alpha(fleet: Door, client: int) -> np.ndarray:
    """A node's dual variables, as it has them after the last reply that the server used."""
    request = Request("mocha-test-duals", options={"n": int(fleet.examples[client])})
    (stack,) = fleet.ask([client], request)
    return stack["beta"][0].numpy()


def optimum(
    examples: list[Examples], loss: str, A: np.ndarray, lam1: float = 0.0, c: list[float] | None = None, g: float = 0.5
) -> tuple[float, np.ndarray]:
    """min over W of sum_t c_t sum l + tr(W^T A W) + lam1 |W|_1, by a generic convex solver."""
    c = c or [1.0] * len(examples)
    if loss == "hinge":
        return _quadratic_program(examples, A, lam1, c)
    m, d = len(examples), examples[0].X.shape[1]
    l = find(loss)

    def value(p: np.ndarray) -> tuple[float, np.ndarray]:
        W = (p[: m * d] - p[m * d :]).reshape(m, d)
        zs = [e.X @ w for e, w in zip(examples, W, strict=True)]
        total = sum(k * l.value(z, e.y, g).sum() for k, z, e in zip(c, zs, examples, strict=True))
        G = np.stack([k * e.X.T @ l.slope(z, e.y, g) for k, z, e in zip(c, zs, examples, strict=True)]) + 2 * A @ W
        total += np.vdot(W, A @ W) + lam1 * p.sum()
        return float(total), np.concatenate([G.ravel() + lam1, -G.ravel() + lam1])

    start = np.zeros(2 * m * d)
    bounds = [(0, None)] * (2 * m * d) if lam1 else None
    options = {"maxiter": 50_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 50}
    found = minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return float(found.fun), (found.x[: m * d] - found.x[m * d :]).reshape(m, d)


def _quadratic_program(
    examples: list[Examples], A: np.ndarray, lam1: float, c: list[float]
) -> tuple[float, np.ndarray]:
    """Variables W = P - N and slacks: y w^T x + slack >= 1."""
    m, d = len(examples), examples[0].X.shape[1]
    n = sum(len(e.y) for e in examples)
    D = np.hstack([np.eye(m * d), -np.eye(m * d)])
    P = np.zeros((2 * m * d + n, 2 * m * d + n))
    P[: 2 * m * d, : 2 * m * d] = 2 * D.T @ np.kron(A, np.eye(d)) @ D + 1e-10 * np.eye(2 * m * d)
    q = np.concatenate(
        [
            np.full(2 * m * d, lam1 + 1e-9),
            np.concatenate([np.full(len(e.y), k) for e, k in zip(examples, c, strict=True)]),
        ]
    )
    rows = np.zeros((n, m * d))
    at = 0
    for t, e in enumerate(examples):
        rows[at : at + len(e.y), t * d : (t + 1) * d] = e.y[:, None] * e.X
        at += len(e.y)
    G = np.hstack([rows @ D, np.eye(n)])
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-10
    size = 2 * m * d + n
    solver.setup(P, q, None, None, G, np.ones(n), None, np.zeros(size), None)
    solver.solve()
    x = solver.result.x
    W = (D @ x[: 2 * m * d]).reshape(m, d)
    loss = sum(k * np.maximum(0, 1 - e.y * (e.X @ w)).sum() for k, e, w in zip(c, examples, W, strict=True))
    return float(loss + np.vdot(W, A @ W) + lam1 * np.abs(W).sum()), W
