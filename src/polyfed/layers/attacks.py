"""Clients that misreport: functions around a client's work, applied where the data is, on every engine.

The attacks of the FedMGDA+ paper (Hu et al. 2022, section VI): a client scales its loss by a factor, or adds a bias to
it. A scaled loss scales gradients, Jacobians and reported losses; a bias changes reported losses alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from polyfed.algorithms.base import STRICT
from polyfed.core.client import Client, Perform, State
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.registry import Registry

attacks: Registry[Callable[..., Any]] = Registry("attack", __name__.rpartition(".")[0])

Ids = list[Annotated[int, Field(ge=0)]]
Gradient = tuple[Tensor, Tensor, Tensor]


class Misreporting:
    """A client whose losses pass through `f <- factor f + bias`; everything else is the honest client's."""

    def __init__(self, inner: Client, factor: float, bias: float) -> None:
        self._inner, self._factor, self._bias = inner, factor, bias

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def grad(self, x: Tensor, buffers: Tensor, batch: Batch, omega: Tensor) -> Gradient:
        return self._falsified(*self._inner.grad(x, buffers, batch, omega))

    def jacobian(self, x: Tensor, buffers: Tensor, batch: Batch) -> Gradient:
        return self._falsified(*self._inner.jacobian(x, buffers, batch))

    def measure(self, x: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
        values = self._inner.measure(x, buffers, batch).clone()
        places = self._inner.problem.loss_places
        values[places] = self._factor * values[places] + self._bias * len(batch.x)
        return values

    def _falsified(self, g: Tensor, losses: Tensor, buffers: Tensor) -> Gradient:
        return self._factor * g, self._factor * losses + self._bias, buffers


@attacks("misreport")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Misreport:
    """The named clients report factor * loss + bias; a factor also scales their gradients."""

    clients: Ids
    factor: float = 1.0
    bias: float = 0.0

    def __call__(self, inner: Perform) -> Perform:
        def attacked(client: Client, request: Request, state: State | None) -> tuple[Mapping[str, Any], State | None]:
            if client.id in self.clients and request.work != "evaluate":  # its own measurements stay honest
                client = Misreporting(client, self.factor, self.bias)
            return inner(client, request, state)

        return attacked
