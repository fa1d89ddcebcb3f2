"""Nodes that do less than asked, drop out, or never answer (Smith et al. 2017, Assumption 2 and Appendix E.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from polyfed.core.errors import BadInput
from polyfed.core.fleet import Around, Ids, PartFleet, Stack, Sum
from polyfed.core.keys import generator
from polyfed.core.layer import Layer, Stage, layers
from polyfed.core.messages import Request
from polyfed.core.part import Parts
from polyfed.core.settings import settings

Chance = Annotated[float, Field(ge=0, le=1)]
LEAST = {"high": 0.1, "low": 0.9}  # of n_min steps, in a variable environment


@layers("faults")
@settings
class Faults(Layer):
    """Nodes that drop out of an exchange, never answer, or do less than asked.

    Args:
        drop: the chance that a node drops out of an exchange, one for all or one each.
        silent: nodes that never answer.
        variability: budgets become a random 10..100 % ('high') or 90..100 % ('low') of n_min, the fewest rows of any
            node.
    """

    stage: ClassVar[Stage] = "transport"

    drop: Chance | list[Chance] = 0.0
    silent: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    variability: Literal["none", "high", "low"] = "none"

    def check(self, parts: Parts, clients: int) -> None:
        n, found = clients, self.drop
        if isinstance(found, list) and len(found) != n:
            raise BadInput(f"faults.drop should be one chance, or one for each of {n} clients. Found {len(found)}.")
        if any(c >= n for c in self.silent):
            raise BadInput(f"faults.silent should be numbers below {n}. Found {self.silent}.")

    def fleet(self, inner: PartFleet) -> PartFleet:
        return Faulty(inner, self)


class Faulty(Around):
    """A fleet with faults. A node that is out does nothing and says nothing."""

    def __init__(self, inner: PartFleet, faults: Faults) -> None:
        super().__init__(inner)
        drop = faults.drop if isinstance(faults.drop, list) else [faults.drop] * len(inner)
        self._drop = [1.0 if c in faults.silent else p for c, p in enumerate(drop)]
        self._least = LEAST.get(faults.variability)
        self._fewest = int(self.examples[self.examples > 0].min())

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        return self.inner.ask(*self._present(clients, request))

    def sum(self, clients: Ids, request: Request) -> Sum:
        return self.inner.sum(*self._present(clients, request))

    def _present(self, clients: Ids, request: Request) -> tuple[Ids, Request]:
        """Who is there, and the request for them; an exchange in which nobody is there takes place all the same."""
        present = [i for i, c in enumerate(clients) if self._draw(c, "drop") >= self._drop[c]]
        return [clients[i] for i in present], self._varied(_only(request, present), clients, present)

    def _varied(self, request: Request, clients: Ids, present: Sequence[int]) -> Request:
        if self._least is None or "budget" not in request.each:
            return request
        parts = [self._least + (1 - self._least) * self._draw(clients[i], "budget") for i in present]
        budget = torch.tensor([max(1, round(part * self._fewest)) for part in parts])
        return replace(request, each={**request.each, "budget": budget})

    def _draw(self, client: int, purpose: str) -> float:
        """A number that is keyed by the exchange that comes next."""
        clock = self.clock
        return float(generator(clock.seed, clock.round, clock.exchange, client, purpose).random())


def _only(request: Request, places: Sequence[int]) -> Request:
    """The request for some of the clients asked."""
    return replace(request, each={name: rows[list(places)] for name, rows in request.each.items()})
