"""The gradients of all objectives at the server's model, compressed; alone, or sent along with local training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyfed.compress import Compressor, compressors
from polyfed.core import tensorkeys
from polyfed.core.client import Client
from polyfed.core.keys import key
from polyfed.core.messages import Request
from polyfed.core.problem import Batch, Problem
from polyfed.core.work import Arrays, work
from polyfed.work.sgd import Gradient, batching, descend, share


def columns(J: Tensor, problem: Problem, over: object) -> Tensor:
    """The part of a Jacobian (M, d) that a Gram matrix is taken over: all parameters, or those that are shared."""
    parts = problem.parts
    some = over == "shared" and len(parts) > 1 and "shared" in parts
    return J[:, problem.part("shared", J.device)] if some else J


def jacobian(client: Client, request: Request) -> Gradient:
    """Gradients (M, d) and losses (M,) on the client's first batch, 0 for what it does not hold; the buffers after."""

    def step(carry: Gradient, batch: Batch, i: int) -> Gradient:
        return client.jacobian(request["x"], request["buffers"], batch)

    x, M = request["x"], len(client.holds)
    start = x.new_zeros(M, len(x)), x.new_zeros(M), request["buffers"]
    return client.loop(step, start, steps=1, batch_size=batching(request.options)["batch_size"])


@work("full-jacobian", reply={"H": "M d", "heard": "M"}, measures=True)
def full_jacobian(client: Client, request: Request) -> Arrays:
    """n_i times the Jacobian over all training rows, and n_i for every objective held."""
    J, _, _ = jacobian(client, request)
    heard = client.n * client.holds
    return {"H": client.n * J, "heard": heard}


def register(compressor: Compressor, name: str) -> None:
    """The three requests that carry compressed Jacobians."""
    heard = {"losses": "M", "heard": "M"}

    @work(f"jacobian-{name}", reply={**compressor.reply, **heard}, numbers=("lr",))
    def compressed(client: Client, request: Request) -> Arrays:
        """Compressed a_i H_i, H_i the stochastic Jacobian on one batch."""
        J, losses, _ = jacobian(client, request)
        a = share(client, request) * client.holds
        return {**_encoded(compressor, J, client, request), "losses": a * losses, "heard": a}

    @work(f"residual-{name}", reply={"true": "M M", "sent": "M M", "cross": "M M"}, numbers=("lr",))
    def residual(client: Client, request: Request) -> Arrays:
        """What two-way compression asks back: Ht^T Ht, H^T H and R^T (h - H), from the same batch as before."""
        J, _, _ = jacobian(client, request)
        Ht = share(client, request) * columns(J, client.problem, request.options["over"])
        H = lifted(compressor, compressor.encode(Ht, request.options, _keys(client)), request, _keys(client), Ht)
        down = {name[2:]: value for name, value in request.shared.items() if name.startswith("h.")}
        h = lifted(compressor, down, request, (client.common_key, own_key(0)), Ht)
        return {"true": Ht @ Ht.T, "sent": H @ H.T, "cross": (Ht - H) @ (h - H).T}

    @work(
        f"sgd-{name}",
        reply={"delta": "d", "buffers": "b", "weight": "", **compressor.reply, **heard},
        numbers=("lr",),
    )
    def along(client: Client, request: Request) -> Arrays:
        """Local training with the weights of the request, and the compressed Jacobian of its first batch."""
        J, losses, buffers = jacobian(client, request)
        omega = request["omega"]
        w, buffers, _ = descend(client, request, omega, first=(omega @ J, losses, buffers))
        a = share(client, request)
        heard = a * client.holds
        trained = {"delta": a * (request["x"] - w), "buffers": a * buffers, "weight": a}
        return {**trained, **_encoded(compressor, J, client, request), "losses": heard * losses, "heard": heard}


def _encoded(compressor: Compressor, J: Tensor, client: Client, request: Request) -> Arrays:
    H = share(client, request) * columns(J, client.problem, request.options["over"])
    return compressor.encode(H, request.options, _keys(client))


def own_key(client_key: Any) -> Any:
    """A client's key for what it draws while compressing; the server can draw the same."""
    return (key if isinstance(client_key, int) else tensorkeys.key)(client_key, "compress")


def _keys(client: Client) -> tuple[int, int]:
    return client.common_key, own_key(client.key)


def lifted(compressor: Compressor, arrays: Arrays, request: Request, keys: tuple[int, int], like: Tensor) -> Tensor:
    """What the server makes of one client's arrays, as (M, p)."""
    stacked = {name: torch.as_tensor(a).unsqueeze(0) for name, a in arrays.items()}
    return compressor.lift(stacked, request.options, [keys], like.shape[1])[0]


for _name in compressors:
    register(compressors[_name], _name)
