"""Clients that misreport, applied where the data is, on every engine.

The attacks of the FedMGDA+ paper (Hu et al. 2022, section VI): a client scales its loss by a factor, or adds a bias to
it. A scaled loss scales gradients, Jacobians and reported losses; a bias changes reported losses alone.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from polyfed.core.client import GradientClient
from polyfed.core.errors import BadInput
from polyfed.core.layer import Layer, Stage, layers
from polyfed.core.part import Parts
from polyfed.core.problem import Batch
from polyfed.core.settings import settings

Ids = list[Annotated[int, Field(ge=0)]]
Gradient = tuple[Tensor, Tensor, Tensor]


class Misreporting:
    """A client whose losses pass through `f <- factor f + bias`; everything else is the honest client's."""

    def __init__(self, inner: GradientClient, factor: float | Tensor, bias: float | Tensor) -> None:
        self._inner, self._factor, self._bias = inner, factor, bias

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def grad(self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor, *, losses: bool = True) -> Gradient:
        return self._falsified(*self._inner.grad(x, buffers, batch, omega, losses=losses))

    def jacobian(self, x: Tensor, buffers: Tensor, batch: Batch, *, train: bool = True) -> Gradient:
        return self._falsified(*self._inner.jacobian(x, buffers, batch, train=train))

    def measure(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        values = self._inner.measure(x, buffers, batch).clone()
        places = self._inner.problem.loss_places
        values[places] = self._factor * values[places] + self._bias * batch.number()
        return values

    def _falsified(self, g: Tensor, losses: Tensor, buffers: Tensor) -> Gradient:
        return self._factor * g, self._factor * losses + self._bias, buffers


@cache
def _numbers(clients: tuple[int, ...], device: torch.device) -> Tensor:
    """Clients' numbers on a device: put there once, as no recorded program may copy from the host."""
    return torch.tensor(clients, device=device)


@layers("misreport")
@settings
class Misreport(Layer):
    """The named clients report factor * loss + bias; a factor also scales their gradients. Evaluation stays honest.

    Args:
        clients: who misreports.
        factor: what losses and gradients are multiplied by.
        bias: what is added to reported losses.
    """

    stage: ClassVar[Stage] = "attack"

    clients: Ids
    factor: float = 1.0
    bias: float = 0.0

    def client(self, client: Any) -> Any:
        if isinstance(client.id, int):
            return Misreporting(client, self.factor, self.bias) if client.id in self.clients else client
        attacks = (client.id == _numbers(tuple(self.clients), client.id.device)).any()  # a stand-in for many
        like = client.problem.dtype
        factor = torch.where(attacks, self.factor, 1.0).to(like)
        return Misreporting(client, factor, torch.where(attacks, self.bias, 0.0).to(like))

    def check(self, parts: Parts, clients: int) -> None:
        if any(c >= clients for c in self.clients):
            raise BadInput(f"attacks.clients should be numbers below {clients}. Found {self.clients}.")
