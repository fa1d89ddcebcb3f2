"""The gradients of all objectives at the server's model, compressed; alone, or sent along with local training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from polyfed.compress import Compressor, compressors, own_key
from polyfed.core.client import GradientClient
from polyfed.core.messages import Request
from polyfed.core.problem import Batch, Problem
from polyfed.core.schema import Field, gradient, statistics, weight
from polyfed.core.work import Arrays, work
from polyfed.work.sgd import HEARD, TRAINED, WEIGHT, Gradient, LocalSteps, descend, local_model


@dataclass(frozen=True)
class JacobianOptions(LocalSteps):
    """How a Jacobian is compressed, besides how the client trains.

    Args:
        compress: the compressor's name and settings; the client knows it by that name already.
        rows, columns: the size of what is compressed.
        over: 'all' parameters, or those that are 'shared'.
        draw: batches and what the compressor draws are of this draw; those of the training that follows of draw 0.
    """

    compress: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    columns: int = 0
    over: Literal["all", "shared"] = "all"
    draw: int = 0

    @cached_property
    def compressor(self) -> Compressor:
        settings = dict(self.compress)
        made: Compressor = compressors.known(settings.pop("name"))(**settings)
        return made

    def cost_of_jacobian(self, n: int, held: int) -> float:
        """A gradient of every objective held, on one batch."""
        return held * self.batch(n)

    def encoded(self) -> Mapping[str, Field]:
        """The schema of a compressed Jacobian."""
        return self.compressor.reply(self.rows, self.columns)


def columns(J: Tensor, problem: Problem, over: str) -> Tensor:
    """The part of a Jacobian (M, d) that a Gram matrix is taken over: all parameters, or those that are shared."""
    parts = problem.parts
    some = over == "shared" and len(parts) > 1 and "shared" in parts
    return J[:, problem.part("shared", J.device)] if some else J


def first_jacobian(client: GradientClient, request: Request, batch_size: int, draw: int = 0) -> Gradient:
    """Gradients (M, d) and losses (M,) on the client's first batch, 0 for what it does not hold; the buffers after."""

    def step(carry: Gradient, batch: Batch, i: int) -> Gradient:
        return client.jacobian(request["x"], request["buffers"], batch)

    x, M = request["x"], len(client.holds)
    start = x.new_zeros(M, len(x)), x.new_zeros(M), request["buffers"]
    return client.loop(step, start, steps=1, batch_size=batch_size, draw=draw)


@dataclass(frozen=True)
class FullOptions:
    """weight: what the client counts in a mean, 1 ('uniform') or its number of examples ('size')."""

    weight: Literal["uniform", "size"] = "uniform"

    def counts(self, n: int) -> float:
        """What a client with n examples counts."""
        return n if self.weight == "size" else 1.0


@work(
    "full-jacobian", reply={"H": gradient("M d", by="heard"), "heard": weight("M")}, options=FullOptions,
    counts=FullOptions.counts, measures=True,
)  # fmt: skip
def full_jacobian(client: GradientClient, request: Request, options: FullOptions) -> Arrays:
    """The Jacobian over all training rows, in evaluation mode: what the theorems mean by the gradients at x."""
    x, buffers = request["x"], request["buffers"]

    def step(carry: tuple[Tensor, Tensor], batch: Batch, i: int) -> tuple[Tensor, Tensor]:
        J, _, _ = client.jacobian(x, buffers, batch, train=False)
        rows = client.problem.counts(batch).unsqueeze(1)
        return carry[0] + rows * J, carry[1] + rows

    start = x.new_zeros(len(client.holds), len(x)), x.new_zeros(len(client.holds), 1)
    total, n = client.loop(step, start, epochs=1, batch_size=1024, shuffle=False)
    stakes = client.fractions if options.weight == "size" else client.holds
    return {"H": total / n.clamp(min=1), "heard": options.counts(client.n) * stakes}


@work(
    "jacobian", reply=lambda o: {**o.encoded(), **HEARD}, options=JacobianOptions, numbers=("lr",),
    cost=JacobianOptions.cost_of_jacobian, counts=JacobianOptions.counts,
)  # fmt: skip
def jacobian(client: GradientClient, request: Request, options: JacobianOptions) -> Arrays:
    """The compressed stochastic Jacobian H_i on one batch."""
    J, at_x, _ = first_jacobian(client, request, options.batch_size, options.draw)
    return {**_encoded(J, client, options), "losses": at_x, "heard": options.heard(client)}


@work(
    "residual",
    reply={
        "true": statistics("M M", by="square"), "sent": statistics("M M", by="square"),
        "cross": statistics("M M", by="share"), "share": weight(in_sums=False),
        "square": weight(in_sums=False, power=2),
    },
    options=JacobianOptions,
    numbers=("lr",),
    cost=JacobianOptions.cost_of_jacobian,
    counts=JacobianOptions.counts,
)  # fmt: skip
def residual(client: GradientClient, request: Request, options: JacobianOptions) -> Arrays:
    """What two-way compression asks back, from the same batch as before: with R = Ht - H and the server's h,
    Ht Ht^T; H H^T + R H^T + H R^T; and R h^T, the first two counted by a_i^2, the last by a_i."""
    J, _, _ = first_jacobian(client, request, options.batch_size)
    J, keys, stakes = columns(J, client.problem, options.over), _keys(client), options.stakes(client).unsqueeze(1)
    Ht, H = J * stakes, lifted(options, options.compressor.encode(J, keys), keys) * stakes  # as the server counts
    down = {name[2:]: value for name, value in request.shared.items() if name.startswith("h.")}
    h, R = lifted(options, down, (client.common_key, own_key(0))), Ht - H
    sent, a = H @ H.T + R @ H.T + H @ R.T, options.share(client)
    return {"true": Ht @ Ht.T, "sent": sent, "cross": R @ h.T, "share": a, "square": a * a}


@work(
    "sgd-jacobian",
    reply=lambda o: {**TRAINED, "weight": WEIGHT, **o.encoded(), **HEARD},
    options=JacobianOptions,
    numbers=("lr",),
    cost=lambda o, n, held: o.cost(n) - o.batch(n) + o.cost_of_jacobian(n, held),  # the first step's is theirs
    counts=JacobianOptions.counts,
    local_model=local_model,
)
def sgd_jacobian(client: GradientClient, request: Request, options: JacobianOptions) -> Arrays:
    """Local training with the weights of the request, and the compressed Jacobian of its first batch."""
    J, at_x, after = first_jacobian(client, request, options.batch_size)
    omega = options.own(client, request["omega"])
    w, after, _ = descend(client, request, options, omega, first=(omega @ J, at_x, after))
    trained = {"delta": request["x"] - w, "buffers": after, "weight": options.share(client)}
    return {**trained, **_encoded(J, client, options), "losses": at_x, "heard": options.heard(client)}


@work(
    "exact-jacobian", reply={"H": gradient("M d", by="heard"), **HEARD}, options=JacobianOptions,
    counts=JacobianOptions.counts, measures=True,
)  # fmt: skip
def exact_jacobian(client: GradientClient, request: Request, options: JacobianOptions) -> Arrays:
    """The Jacobian of the same batch as `jacobian`, whole: to measure what compressing it has cost."""
    J, at_x, _ = first_jacobian(client, request, options.batch_size)
    some = columns(J, client.problem, options.over)
    H = torch.nn.functional.pad(some, (0, J.shape[1] - some.shape[1]))
    return {"H": H, "losses": at_x, "heard": options.heard(client)}


def _encoded(J: Tensor, client: GradientClient, options: JacobianOptions) -> Arrays:
    return options.compressor.encode(columns(J, client.problem, options.over), _keys(client, options.draw))


def _keys(client: GradientClient, draw: int = 0) -> tuple[Any, Any]:
    return client.common_key, own_key(client.key, draw)


def lifted(options: JacobianOptions, arrays: Arrays, keys: tuple[Any, Any]) -> Tensor:
    """What the server makes of one client's arrays, as (M, p)."""
    stacked = {name: torch.as_tensor(a).unsqueeze(0) for name, a in arrays.items()}
    return options.compressor.lift(stacked, [keys], options.rows, options.columns)[0]
