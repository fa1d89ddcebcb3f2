"""What a node of MOCHA does: coordinate ascent on the dual of its own rows, and the measures that go with it.

A request carries the node's w_t, s = sigma' Mbar_tt and c (1, or 1 / n_t) in rows of their own; the reply carries
dv_t = X_t dalpha_t. The dual variables are the node's durable state, kept as beta = alpha / c; the server's use of a
reply is what commits them (line 8 of Algorithm 1), so that v = X alpha holds whatever was lost on the way.

Smith, Chiang, Sanjabi, Talwalkar, "Federated Multi-Task Learning", 2017: Algorithm 1, subproblem (4), Definition 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from polyfed.core.client import ClientState, RowClient
from polyfed.core.keys import key, permutation
from polyfed.core.messages import Request
from polyfed.core.schema import gradient, losses, statistics, update, weight
from polyfed.core.work import Arrays, work
from polyfed.work.linear.examples import Examples, as_examples
from polyfed.work.linear.losses import Loss, find

Floats = NDArray[np.float64]
PASSES = 1000  # over a node's rows, at most, when it works towards an accuracy


@dataclass(frozen=True)
class TaskOptions:
    """loss, smoothing: the loss of the tasks; average: the mean of the dual iterates from so many rounds on, or -1."""

    loss: str
    smoothing: float = 0.5
    average: int = -1


@dataclass(frozen=True)
class SdcaOptions(TaskOptions):
    """How far a node goes.

    Args:
        gamma: the part of its step that the server takes.
        k: 1 to report Definition 1's theta, 0 not to.
        theta: work until this accuracy, instead of within the budget, where it is positive.
        batch_scale: one minibatch of the budget's size, scaled by this over the size, where it is positive.
    """

    gamma: float = 1.0
    k: int = 0
    theta: float = 0.0
    batch_scale: float = 0.0


def begin(client: RowClient) -> ClientState:
    """alpha = 0 (line 2 of Algorithm 1)."""
    return {"beta": torch.zeros(int(client.n), dtype=torch.float64)}


@dataclass
class Subproblem:
    """min over dalpha of sum l*(-alpha - dalpha) + <w, X dalpha> + s/2 |X dalpha|^2, (4) with s = sigma' Mbar_tt.

    It is the dual of min over u of sum l(x^T u) + |u - (w - s X alpha)|^2 / 2s, and u = w + s X dalpha.
    """

    rows: Examples
    loss: Loss
    g: float
    w: Floats
    s: float
    c: float
    start: Floats
    key: int
    beta: Floats = field(init=False)
    u: Floats = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.beta, self.u = self.start.copy(), self.w.copy()

    def improve(self, steps: int, live: bool = True) -> None:
        """So many coordinate steps."""
        of = key(self.key, "sdca", self.steps)
        self.rows.sdca(self.beta, self.u, s=self.s, c=self.c, loss=self.loss, g=self.g, steps=steps, key=of, live=live)
        self.steps += steps

    def dv(self) -> Floats:
        """X dalpha."""
        return self.rows.combine(self.c * (self.beta - self.start))

    def value(self) -> float:
        dv = self.dv()
        conjugates = self.loss.conjugate(self.beta, self.rows.y, self.g).sum()
        return float(self.c * conjugates + self.w @ dv + self.s / 2 * dv @ dv)

    def gap(self) -> float:
        """How far the value is from the least, at most."""
        y, z = self.rows.y, self.rows.margins(self.u)
        terms = self.loss.value(z, y, self.g) + self.loss.conjugate(self.beta, y, self.g) + self.beta * z
        return float(self.c * terms.sum())

    def until(self, theta: float, first: float) -> None:
        """Passes over the rows until Definition 1's accuracy is surely reached; first is G(0).

        With a = G(0) - G(dalpha) and the gap g >= G(dalpha) - G*, theta is at most g / (a + g).
        """
        for _ in range(PASSES):
            self.improve(len(self.start))
            gap = max(self.gap(), 0.0)
            if gap <= theta * (first - self.value() + gap) or gap <= 1e-14 * max(abs(first), 1.0):
                return

    def theta(self) -> float:
        """Definition 1, (G(dalpha) - G*) / (G(0) - G*), by going on to the end; nothing of that is kept."""
        best = Subproblem(self.rows, self.loss, self.g, self.w, self.s, self.c, self.start, self.key)
        first, reached = best.value(), self.value()
        best.beta, best.u = self.beta.copy(), self.w + self.s * self.dv()
        best.until(1e-6, first)
        least = min(best.value(), reached)
        return (reached - least) / (first - least) if first > least else 0.0


def lengths_of_v(arrays: Mapping[str, Tensor], nodes: Sequence[int], request: Request) -> Tensor:
    """|v_t + gamma dv_t| of each node, in its unit: what the guard compares.

    Of tasks that are tied, one node's v_t is in all models. A step that no other node takes may still be honest, late,
    where most have arrived; where it leads is alike at any time.
    """
    dv = arrays["dv"]
    v = request.known["v"][_tasks(request, nodes)].to(dv) if "v" in request.known else torch.zeros_like(dv)
    return _per_unit(v + SdcaOptions(**dict[str, Any](request.options)).gamma * dv, nodes, request)


def lengths_of_g(arrays: Mapping[str, Tensor], nodes: Sequence[int], request: Request) -> Tensor:
    """Of each node's gradient, in its unit."""
    return _per_unit(arrays["g"], nodes, request)


def _tasks(request: Request, nodes: Sequence[int]) -> Tensor:
    return request.known["task"][torch.as_tensor(nodes, dtype=torch.int64)]


def _per_unit(a: Tensor, nodes: Sequence[int], request: Request) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(a, dim=1, keepdim=True)
    if "unit" not in request.known:
        return length
    unit = request.known["unit"][_tasks(request, nodes)]
    return length / unit.unsqueeze(1).to(a)


def fenchel_young(arrays: Mapping[str, Tensor], nodes: Sequence[int], request: Request) -> Tensor:
    """c sum l(z) + c sum l*(-beta) + <w_t, v_t> as a part of its terms: each row's l(z) + l*(-beta) + beta z >= 0.

    1 where the server cannot say: nodes that share a task share its v_t.
    """
    loss, conjugate = arrays["loss"], arrays["conjugate"]
    if "product" not in request.known:
        return torch.ones_like(loss).unsqueeze(1)
    product = request.known["product"][_tasks(request, nodes)].to(loss)
    scale = loss.abs() + conjugate.abs() + product.abs()
    part = (loss + conjugate + product) / torch.where(scale > 0, scale, 1.0)
    return torch.where(product.isnan(), 1.0, part).unsqueeze(1)


@work(
    "sdca",
    reply={
        "dv": update("d", "float64", lengths=lengths_of_v), "steps": statistics("", "float64"),
        "theta": statistics("k", "float64"),
    },
    options=SdcaOptions,
    needs="rows",
    state=begin,
)  # fmt: skip
def sdca(client: RowClient, request: Request, options: SdcaOptions, state: ClientState) -> tuple[Arrays, ClientState]:
    """Improve the node's subproblem within its budget of coordinate steps, or until `theta`; reply with dv_t.

    Where `batch_scale` is positive the budget is a minibatch instead (Mb-SDCA): every coordinate's step is taken from
    the same w_t, and their sum is scaled by batch_scale / budget, at most 1: beyond that, duals leave their domain.
    k = 1 asks for Definition 1's theta as well.
    """
    budget = int(request["budget"])
    local = _subproblem(client, request, options, state)
    if options.theta:
        local.until(options.theta, local.value())
    elif options.batch_scale:
        local.improve(min(budget, len(local.start)), live=False)
        scale = min(options.batch_scale / max(local.steps, 1), 1.0)
        local.beta = local.start + scale * (local.beta - local.start)
    else:
        local.improve(budget)
    theta = [local.theta()] if options.k else []
    beta = local.start + options.gamma * (local.beta - local.start)
    reply = {"dv": _tensor(local.dv()), "steps": _tensor(local.steps), "theta": _tensor(theta).reshape(-1)}
    return reply, {"beta": torch.from_numpy(beta), **_averaged(state, options.average, request.round - 1)}


@work(
    "task-values",
    reply={"loss": losses("", "float64"), "conjugate": statistics("", "float64", slack=fenchel_young)},
    options=TaskOptions,
    needs="rows",
    state=begin,
    measures=True,
)
def task_values(
    client: RowClient, request: Request, options: TaskOptions, state: ClientState
) -> tuple[Arrays, ClientState]:
    """c sum l(w_t^T x, y) and c sum l*(-alpha): with R and R* the server has primal, dual and gap.

    With `average` the dual variables are their mean over the rounds so far (Theorem 2).
    """
    rows, loss, g = _rows(client, request, options), find(options.loss), options.smoothing
    beta = state["beta"]
    mean = _averaged(state, options.average, request.round)
    if mean and mean["rounds"] > 0:
        beta = mean["sum"] / mean["rounds"]
    z = rows.margins(_floats(request["w"]))
    values = {"loss": loss.value(z, rows.y, g), "conjugate": loss.conjugate(_floats(beta), rows.y, g)}
    return {name: _tensor(float(request["c"]) * v.sum()) for name, v in values.items()}, state


@work(
    "task-gradient",
    reply={"g": gradient("d", "float64", lengths=lengths_of_g), "steps": statistics("", "float64")},
    options=TaskOptions,
    needs="rows",
)
def task_gradient(client: RowClient, request: Request, options: TaskOptions) -> Arrays:
    """c n_t / b times the sum of loss gradients over a batch of b rows: unbiased for the whole task (Mb-SGD)."""
    rows, loss, g = _rows(client, request, options), find(options.loss), options.smoothing
    n = len(rows.y)
    batch = permutation(key(client.key, "batch"), n)[: int(request["budget"])]
    slopes = np.zeros(n)
    slopes[batch] = loss.slope(rows.margins(_floats(request["w"])), rows.y, g)[batch]
    scaled = float(request["c"]) * n / max(len(batch), 1) * slopes
    return {"g": _tensor(rows.combine(scaled)), "steps": _tensor(len(batch))}


@work(
    "moments",
    reply={
        "n": weight("", "float64", whole=True, exact=True), "sum": statistics("d", "float64", squares="squares"),
        "squares": statistics("d", "float64", least=0.0, power=2, per="n", alike=True),
    },
    needs="rows",
)  # fmt: skip
def moments(client: RowClient, request: Request) -> Arrays:
    """How many rows, and the sums of every feature and of its square: what standardising needs."""
    X = _matrix(client, client.problem.dim)
    return {"n": _tensor(len(X)), "sum": _tensor(X.sum(0)), "squares": _tensor((X**2).sum(0))}


def _subproblem(client: RowClient, request: Request, options: TaskOptions, state: ClientState) -> Subproblem:
    return Subproblem(
        _rows(client, request, options), find(options.loss), options.smoothing,
        _floats(request["w"]), float(request["s"]), float(request["c"]), _floats(state["beta"]), client.key,
    )  # fmt: skip


def _averaged(state: ClientState, H0: int, last: int) -> dict[str, Tensor]:
    """The sum of alpha over rounds H0 + 1 ... last (Theorem 2); it stood still while the node was not asked."""
    if H0 < 0:
        return {}
    rounds = max(last - H0, 0)
    more = rounds - int(state.get("rounds", 0))
    total = state.get("sum", torch.zeros_like(state["beta"]))
    return {"sum": total + more * state["beta"], "rounds": torch.tensor(rounds)}


def _rows(client: RowClient, request: Request, options: TaskOptions) -> Examples:
    """The node's training rows as the loops want them; kept where the engine keeps a client's scratch."""
    if "rows" not in client.scratch:
        X, batch = _matrix(client, len(request["w"])), client.data()
        if "scale" in request.shared:
            X = (X - _floats(request["shift"])) / _floats(request["scale"])
        y = batch.targets.get(client.problem.names[0], batch.targets.get(""))
        client.scratch["rows"] = as_examples(X, y, find(options.loss))
    rows: Examples = client.scratch["rows"]
    return rows


def _matrix(client: RowClient, d: int) -> Any:
    """The training rows as float64, with a constant feature where the model has one more parameter than features."""
    x = client.data().x
    if sparse.issparse(x):
        return x
    X = x.reshape(len(x), -1).double().numpy()
    return np.hstack([X, np.ones((len(X), 1))]) if X.shape[1] == d - 1 else X


def _floats(value: Tensor) -> Floats:
    return np.ascontiguousarray(value.cpu().numpy(), dtype=np.float64)


def _tensor(value: Any) -> Tensor:
    return torch.as_tensor(np.asarray(value, dtype=np.float64))
