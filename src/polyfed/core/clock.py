"""One model's time, as its clients are told it: rounds, exchanges, and whose replies were used."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.work import works

if TYPE_CHECKING:
    from polyfed.core.fleet import Ids, Stack, Sum


class Clock:
    """One model's time: rounds, exchanges, and the last exchange of each client whose reply was used.

    Clients that keep state are told the last tick of theirs that was used with the next request, and commit or discard
    what they were keeping.

    Args:
        seed: of all draws.
        layers: the run's: some keep state at the clients, whatever the work.
    """

    def __init__(self, seed: int, layers: Layers | None = None) -> None:
        self.seed, self.round, self.exchange = seed, 0, 0
        self.layers = layers or Layers()
        self.used: dict[int, int] = {}  # client -> tick
        self.failures: list[tuple[int, str]] = []  # of this round
        self.left_out: Mapping[int, str] = {}  # who is not asked in this round, and why
        self._answered: dict[int, int] = {}  # client -> the last tick that it answered with a state
        self._begun: dict[int, int] = {}
        self._lock = threading.Lock()

    def begin(self, t: int, left_out: Mapping[int, str] | None = None) -> None:
        self.round, self.exchange, self.failures, self.left_out = t, 0, [], left_out or {}
        self._begun = dict(self.used)

    def stamp(self, clients: Ids, request: Request) -> Request:
        """The request as it goes out now: one more exchange."""
        with self._lock:
            exchange, self.exchange = self.exchange, self.exchange + 1
        folded = torch.tensor([self.used.get(c, -1) for c in clients], dtype=torch.int64)
        return replace(request, seed=self.seed, round=self.round, exchange=exchange, folded=folded)

    def answered(self, clients: Ids, request: Request) -> None:
        """These clients have answered an exchange; where they kept state with it, it may yet be used."""
        if self._keeps(request):
            with self._lock:
                self._answered.update(dict.fromkeys(clients, request.tick))

    def use(self, answer: Stack | Sum, request: Request) -> None:
        """An answer has been used: the state that its clients kept with it counts, and who failed is noted."""
        with self._lock:
            self.failures += answer.failed.items()
            if self._keeps(request):
                self.used.update({c: self._answered[c] for c in answer.clients if c in self._answered})

    def _keeps(self, request: Request) -> bool:
        work = works[request.work]
        return work.state is not None or self.layers.remember(work)

    def rewind(self) -> None:
        """Back to the beginning of the round, which could not be finished."""
        self.used = dict(self._begun)

    def tree(self) -> dict[str, Any]:
        """Whose replies were used last, for the checkpoint."""
        if not self.used:
            return {}
        return {"clients": torch.tensor(list(self.used)), "ticks": torch.tensor(list(self.used.values()))}

    def load(self, tree: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""
        self.used = dict(zip(tree["clients"].tolist(), tree["ticks"].tolist(), strict=True)) if tree else {}
