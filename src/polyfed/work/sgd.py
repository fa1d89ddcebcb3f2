"""Local training: some steps of minibatch SGD, momentum or Adam from the server's model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyfed.core.client import Client
from polyfed.core.messages import Options, Request
from polyfed.core.problem import Batch
from polyfed.core.work import Arrays, work

Slots = tuple[Tensor, ...]


Carry = tuple[Tensor, Tensor, Tensor, Slots]
Gradient = tuple[Tensor, Tensor, Tensor]  # of the weighted objective, the losses, the buffers after


@work("sgd", reply={"delta": "d", "buffers": "b", "losses": "M", "heard": "M", "weight": ""}, numbers=("lr",))
def sgd(client: Client, request: Request) -> Arrays:
    """Minimise sum_s omega_s f_s + mu/2 |w - x|^2 from x; reply with a (x - w), so that a sum is a weighted mean.

    a is 1 or, with weight = "size", the number of examples. losses are those of the first batch, at x.
    """
    w, buffers, losses = descend(client, request, request["omega"])
    a = share(client, request)
    heard = a * client.holds
    delta = a * (request["x"] - w)
    return {"delta": delta, "buffers": a * buffers, "losses": heard * losses, "heard": heard, "weight": a}


def descend(client: Client, request: Request, omega: Tensor, first: Gradient | None = None) -> Gradient:
    """Local steps on sum_s omega_s f_s: the model, the buffers, and the losses at the start.

    first: the first step's gradient, where the client has it already.
    """
    x, options = request["x"], request.options
    lr: Any = options["lr"]
    mu = float(options.get("mu") or 0.0)  # type: ignore[arg-type]

    def step(carry: Carry, batch: Batch, i: int) -> Carry:
        w, buffers, losses, slots = carry
        known = first if i == 0 else None
        g, now, buffers = known if known is not None else client.grad(w, buffers, batch, omega)
        if mu:
            g = g + mu * (w - x)
        u, slots = direction(g, slots, i, options)
        w = w - lr * u if isinstance(lr, Tensor) else torch.add(w, u, alpha=-float(lr))
        return w, buffers, now if i == 0 else losses, slots

    start = (x, request["buffers"], torch.zeros_like(omega), begin(x, options))
    w, buffers, losses, _ = client.loop(step, start, **batching(options))  # type: ignore[arg-type]
    return w, buffers, losses


def share(client: Client, request: Request) -> Any:
    """a_i: what this client counts in a mean, 1 or its number of examples."""
    return client.n if request.options["weight"] == "size" else 1.0


def batching(options: Options) -> dict[str, int]:
    """How the local loop is cut, from a request's options."""
    return {name: int(options.get(name) or 0) for name in ("steps", "epochs", "batch_size")}  # type: ignore[arg-type]


def begin(x: Tensor, options: Options) -> Slots:
    """What the optimiser remembers at the first step: nothing lasts from round to round."""
    if options.get("optimizer") == "adam":
        return torch.zeros_like(x), torch.zeros_like(x)
    return (torch.zeros_like(x),) if options.get("momentum") else ()


def direction(g: Tensor, slots: Slots, i: int, options: Options) -> tuple[Tensor, Slots]:
    """The step to take for gradient g: g itself, heavy-ball momentum, or Adam with its usual constants."""
    if options.get("optimizer") == "adam":
        m = torch.lerp(slots[0], g, 0.1)
        v = torch.lerp(slots[1], g * g, 0.001)
        return (m / (1 - 0.9 ** (i + 1))) / ((v / (1 - 0.999 ** (i + 1))).sqrt() + 1e-8), (m, v)
    if slots:
        velocity = torch.add(g, slots[0], alpha=float(options["momentum"]))  # type: ignore[arg-type]
        return velocity, (velocity,)
    return g, slots
