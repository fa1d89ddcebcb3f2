"""Local training: some steps of minibatch SGD, momentum, Adam or AdamW from the server's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from polyfed.core.client import Client, GradientClient
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.schema import buffers, losses, update, weight
from polyfed.core.work import Arrays, work

Slots = tuple[Tensor, ...]
Carry = tuple[Tensor, Tensor, Tensor, Slots]
Gradient = tuple[Tensor, Tensor, Tensor]  # of the weighted objective, the losses, the buffers after


class Batching(TypedDict):
    """How a local loop is cut."""

    steps: int
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class LocalSteps:
    """How a client trains.

    Args:
        lr: the step size; on a GPU it may come as a tensor, so that one program serves all rounds.
        steps, epochs: so many steps, or so many passes over the rows.
        batch_size: rows of a batch, 0 for all.
        optimizer, momentum: plain SGD, with momentum, Adam, or AdamW.
        weight_decay: with 'adamw' the part of w that a step takes off, times lr; else of an L2 term in the gradient.
        clip: the longest gradient of a step, 0 for any.
        weight: what the client counts in a mean, 1 ('uniform') or its number of examples ('size').
        mu: the strength of a proximal term mu/2 |w - x|^2.
    """

    lr: float
    steps: int = 0
    epochs: int = 0
    batch_size: int = 0
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0
    weight: Literal["uniform", "size"] = "uniform"
    mu: float = 0.0

    @property
    def batching(self) -> Batching:
        return {"steps": self.steps, "epochs": self.epochs, "batch_size": self.batch_size}

    def batch(self, n: int) -> int:
        """Rows of a step of a client with n."""
        return min(self.batch_size or n, n)

    def cost(self, n: int, held: int = 1) -> float:
        """Rows that a client with n takes gradients on."""
        return self.steps * self.batch(n) if self.steps else max(self.epochs, 1) * n

    def counts(self, n: int) -> float:
        """What a client with n examples counts in a mean, as the server knows it."""
        return n if self.weight == "size" else 1.0

    def share(self, client: Client) -> Any:
        """a_i: what this client counts in a mean, 1 or its number of examples."""
        return self.counts(client.n)

    def stakes(self, client: Client) -> Tensor:
        """What part of a_i counts for each objective: all for those it holds; by size, the part that has a label."""
        return client.fractions if self.weight == "size" else client.holds

    def own(self, client: Client, omega: Tensor) -> Tensor:
        """The objectives' weights omega for this client: by size, an objective counts by the labels it has for it."""
        return omega * client.fractions if self.weight == "size" else omega

    def heard(self, client: Client) -> Tensor:
        """a_is: what this client counts in a mean of one objective."""
        heard: Tensor = self.share(client) * self.stakes(client)
        return heard


TRAINED = {"delta": update("d", by="weight"), "buffers": buffers("b", by="weight")}
WEIGHT = weight(exact=True)  # the server knows what a client counts: less would make others' means of it large
HEARD = {"losses": losses("M", by="heard"), "heard": weight("M", exact=True)}


def local_model(client: GradientClient, request: Request, options: LocalSteps) -> tuple[Tensor, Tensor]:
    """Where local steps on sum_s omega_s f_s end: the model and the buffers."""
    w, after, _ = descend(client, request, options, options.own(client, request["omega"]))
    return w, after


@work(
    "sgd", reply={**TRAINED, **HEARD, "weight": WEIGHT}, options=LocalSteps, numbers=("lr",), cost=LocalSteps.cost,
    counts=LocalSteps.counts, local_model=local_model,
)  # fmt: skip
def sgd(client: GradientClient, request: Request, options: LocalSteps) -> Arrays:
    """Minimise sum_s omega_s f_s + mu/2 |w - x|^2 from x; reply with x - w. The losses are those at x, on one batch."""
    w, after, at_x = descend(client, request, options, options.own(client, request["omega"]))
    trained = {"delta": request["x"] - w, "buffers": after, "weight": options.share(client)}
    return {**trained, "losses": at_x, "heard": options.heard(client)}


def descend(
    client: GradientClient, request: Request, options: LocalSteps, omega: Tensor, first: Gradient | None = None,
    *, losses: bool = True,
) -> Gradient:  # fmt: skip
    """Local steps on sum_s omega_s f_s: the model, the buffers, and the losses at the start.

    first: the first step's gradient, where the client has it already; losses: whether those at the start are wanted.
    """
    x, lr = request["x"], options.lr

    def step(carry: Carry, batch: Batch, i: int) -> Carry:
        w, now_buffers, at_x, slots = carry
        known = first if i == 0 else None
        g, now, now_buffers = (
            known if known is not None else client.grad(w, now_buffers, batch, omega, losses=losses and i == 0)
        )
        if options.mu:
            g = g + options.mu * (w - x)
        u, slots = direction(shaped(g, w, options), slots, i, options)
        if options.weight_decay and options.optimizer == "adamw":
            w = w * (1 - lr * options.weight_decay)
        w = torch.addcmul(w, u, lr, value=-1) if isinstance(lr, Tensor) else torch.add(w, u, alpha=-float(lr))
        return w, now_buffers, now if i == 0 else at_x, slots

    start = (x, request["buffers"], torch.zeros_like(omega), begin(x, options))
    w, after, at_x, _ = client.loop(step, start, **options.batching)
    return w, after, at_x


def begin(x: Tensor, options: LocalSteps) -> Slots:
    """What the optimiser remembers at the first step: nothing lasts from round to round."""
    if options.optimizer != "sgd":
        return torch.zeros_like(x), torch.zeros_like(x)
    return (torch.zeros_like(x),) if options.momentum else ()


def shaped(g: Tensor, w: Tensor, options: LocalSteps) -> Tensor:
    """The gradient that the optimiser sees: cut to a length, and then with the L2 term, in torch's order."""
    if options.clip:
        g = g * (options.clip / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1.0)  # `clip_grad_norm_`'s constant
    if options.weight_decay and options.optimizer != "adamw":
        g = torch.add(g, w, alpha=options.weight_decay)
    return g


def direction(g: Tensor, slots: Slots, i: int, options: LocalSteps) -> tuple[Tensor, Slots]:
    """The step to take for gradient g: g itself, heavy-ball momentum, or Adam with its usual constants."""
    if options.optimizer != "sgd":
        m = torch.lerp(slots[0], g, 0.1)
        v = torch.lerp(slots[1], g * g, 0.001)
        return (m / (1 - 0.9 ** (i + 1))) / ((v / (1 - 0.999 ** (i + 1))).sqrt() + 1e-8), (m, v)
    if slots:
        velocity = torch.add(g, slots[0], alpha=options.momentum)
        return velocity, (velocity,)
    return g, slots
