"""What an oracle has to be told of a run: who answered each exchange, and the models after each round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from polyfed import Callback, Layer, Rows
from polyfed.core.fleet import Around, Ids, PartFleet, Stack, Sum
from polyfed.core.layer import Stage
from polyfed.core.messages import Request
from polyfed.run.callbacks import RunView


class Answered(Layer):
    """Lists who was asked and whose replies the server had, by round and work; it goes before layers that lose some."""

    stage: ClassVar[Stage] = "transport"

    def __init__(self) -> None:
        self.log: dict[tuple[int, str], list[tuple[list[int], list[int]]]] = {}

    def fleet(self, inner: PartFleet) -> PartFleet:
        return _Listing(inner, self)

    def __call__(self, t: int, work: str, exchange: int = 0) -> list[int]:
        """Who answered the round's exchange for this work, the first of them if there were several."""
        return self.log[t, work][exchange][1]

    def among(self, t: int, work: str, group: list[int]) -> list[int]:
        """Who of a group answered the exchange that was made with this group: of several models, each has its own."""
        return next(heard for asked, heard in self.log[t, work] if asked == group)

    def asked(self, t: int, work: str) -> list[int]:
        """Who was asked, in the first of them."""
        return self.log[t, work][0][0]


class _Listing(Around):
    def __init__(self, inner: PartFleet, answered: Answered) -> None:
        super().__init__(inner)
        self._log = answered.log

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        heard = self._begin(clients, request)
        for stack in self.inner.ask(clients, request):
            heard.extend(stack.clients)
            yield stack

    def sum(self, clients: Ids, request: Request) -> Sum:
        heard = self._begin(clients, request)
        total = self.inner.sum(clients, request)
        heard.extend(total.clients)
        return total

    def _begin(self, clients: Ids, request: Request) -> list[int]:
        heard: list[int] = []
        self._log.setdefault((self.clock.round, request.work), []).append(([int(c) for c in clients], heard))
        return heard


class Iterates(Callback):
    """The model's vector after each round, by the model's name."""

    def __init__(self) -> None:
        self.found: list[dict[str, np.ndarray]] = []

    def on_round(self, run: RunView, line: Mapping[str, Any]) -> None:
        self.found.append({name: state["x"].detach().numpy().copy() for name, state in run.states.items()})

    @property
    def x(self) -> np.ndarray:
        """Of one model alone, a row a round."""
        return np.stack([states[""] for states in self.found])


def uneven(sizes: tuple[int, ...]) -> Rows:
    """Clients with so many rows each, one after another."""
    length = np.array(sizes)
    return Rows(np.arange(length.sum()), np.cumsum(length) - length, length)
