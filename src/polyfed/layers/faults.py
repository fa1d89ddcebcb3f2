"""Nodes that do less than asked, drop out, or never answer (Smith et al. 2017, Assumption 2 and Appendix E.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from polyfed.algorithms.base import STRICT
from polyfed.core.errors import BadInput
from polyfed.core.fleet import Around, Fleet, Ids, Stack
from polyfed.core.keys import generator
from polyfed.core.messages import Request
from polyfed.core.work import works

Chance = Annotated[float, Field(ge=0, le=1)]
LEAST = {"high": 0.1, "low": 0.9}  # of n_min steps, in a variable environment


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Faults:
    """drop: the chance that a node drops out of an exchange, one for all or one each; silent: nodes that never answer.

    variability: budgets become a random 10..100 % ('high') or 90..100 % ('low') of n_min, the fewest rows of any node.
    """

    drop: Chance | list[Chance] = 0.0
    silent: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    variability: Literal["none", "high", "low"] = "none"

    def check(self, n: int) -> None:
        """Refuse what does not fit n clients."""
        if isinstance(self.drop, list) and len(self.drop) != n:
            raise BadInput(f"faults.drop should be one chance, or one for each of {n} clients. Found {len(self.drop)}.")
        if any(c >= n for c in self.silent):
            raise BadInput(f"faults.silent should be numbers below {n}. Found {self.silent}.")

    def __call__(self, inner: Fleet) -> Fleet:
        self.check(len(inner))
        return Faulty(inner, self)


class Faulty(Around):
    """A fleet with faults. A node that is out does nothing and says nothing; what only measures is let through."""

    def __init__(self, inner: Fleet, faults: Faults) -> None:
        super().__init__(inner)
        drop = faults.drop if isinstance(faults.drop, list) else [faults.drop] * len(inner)
        self._drop = [1.0 if c in faults.silent else p for c, p in enumerate(drop)]
        self._least = LEAST.get(faults.variability)
        self._fewest = int(self.examples[self.examples > 0].min())

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        if works[request.work].measures:
            yield from self.inner.ask(clients, request)
            return
        present = [i for i, c in enumerate(clients) if self._draw(request, c, "drop") >= self._drop[c]]
        if present:
            yield from self.inner.ask(
                [clients[i] for i in present], self._varied(_only(request, present), clients, present)
            )

    def _varied(self, request: Request, clients: Ids, present: Sequence[int]) -> Request:
        if self._least is None or "budget" not in request.each:
            return request
        parts = [self._least + (1 - self._least) * self._draw(request, clients[i], "budget") for i in present]
        budget = torch.tensor([max(1, round(part * self._fewest)) for part in parts])
        return replace(request, each={**request.each, "budget": budget})

    def _draw(self, request: Request, client: int, purpose: str) -> float:
        return float(generator(request.seed, request.round, request.exchange, client, purpose).random())


def _only(request: Request, places: Sequence[int]) -> Request:
    """The request for some of the clients asked."""
    each = {name: rows[list(places)] for name, rows in request.each.items()}
    return replace(request, each=each, folded=None if request.folded is None else request.folded[list(places)])
