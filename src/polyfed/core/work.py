"""What clients do: one function per kind of request, the same on every engine.

A work function gets a `Client` and the request and returns named arrays:

    @work("norm", reply={"norm": ""})
    def norm(client: Client, request: Request) -> Arrays: ...

`reply` is the schema of the answer, checked at the server: each array's axes in letters (d parameters, b buffers, M
objectives, K measured values, or an integer option of the request), then optionally its type, as in "k:int64". Work
that remembers something between rounds names how to begin and takes and returns its state:

    @work("count", reply={"n": ""}, state=lambda client: {"n": torch.zeros(())})
    def count(client: Client, request: Request, state: State) -> tuple[Arrays, State]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyfed.core.client import Client, State
from polyfed.core.messages import DTYPES, Request
from polyfed.core.registry import Registry

Arrays = Mapping[str, Tensor | float]


@dataclass(frozen=True)
class Work:
    """A client's side of a request. Where it only measures, simulated faults and simulated time leave it alone.

    numbers: options, floats that a method may change every round, which may come as tensors, too.
    """

    do: Callable[..., Any]
    reply: Mapping[str, str]
    state: Callable[[Client], State] | None = None
    measures: bool = False
    numbers: tuple[str, ...] = ()

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.do.__doc__

    def __call__(self, client: Client, request: Request, state: State | None) -> tuple[Arrays, State | None]:
        if self.state is None:
            return self.do(client, request), None
        answer: tuple[Arrays, State] = self.do(client, request, self.state(client) if state is None else state)
        return answer

    def schema(self, dims: Mapping[str, int], dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each array of a reply; dims gives the letters' sizes."""
        return {name: _axes(text, dims, dtype) for name, text in self.reply.items()}


def _axes(text: str, dims: Mapping[str, int], dtype: torch.dtype) -> tuple[tuple[int, ...], torch.dtype]:
    axes, _, kind = text.partition(":")
    shape = tuple(dims[axis] if axis in dims else int(axis) for axis in axes.split())
    return shape, DTYPES[kind] if kind else dtype


works: Registry[Work] = Registry("work", "polyfed.work", own=False)


def work(
    name: str,
    *,
    reply: Mapping[str, str],
    state: Callable[[Client], State] | None = None,
    measures: bool = False,
    numbers: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a work function under the name that requests call it by."""

    def add(do: Callable[..., Any]) -> Callable[..., Any]:
        works(name)(Work(do, dict(reply), state, measures, numbers))
        return do

    return add
