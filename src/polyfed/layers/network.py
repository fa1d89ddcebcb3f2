"""Simulated time: what a round would take on phones, from counted operations and counted bytes.

    Time(h, t) = FLOPs(h, t) / clock rate + bytes / bandwidth + latency          (Smith et al. 2017, equation 30)

A round lasts as long as its slowest node, exchange after exchange. The paper says only that it takes known figures;
ours, each of which a setting can replace:

| | down, up (Mbit/s) | round trip (ms) | from |
|---|---|---|---|
| 3g | 1.6, 1.6 | 220 | geometric middle of 0.5-5 Mbit/s and 100-500 ms (Grigorik 2013, table 7-2) |
| lte | 13, 6 | 55 | medians of Huang et al. 2012 (throughput) and of Catchpoint 2013 (ping) |
| wifi | 54, 54 | 21 | the rate of 802.11g, and the median ping of home lines (Catchpoint 2013) |

The clock is a phone's core of about 2009-2013, 1e9 operations a second. Operations count d: a step on one row of a
linear task takes 4 d (a product and an update), a gradient of a network on one row 6 d (forward, backward), for every
objective whose gradient is taken apart: each work says on how many rows it takes some.

Section 5.3 of the paper instead scales communication relative to computation by one, two or three orders of magnitude.
With `communication = c` a number that travels, down or up, takes as long as c operations; bandwidth is out of it:

    Time(h, t) = (FLOPs(h, t) + c numbers(h, t)) / clock rate + latency, 0 unless given
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from polyfed.core.errors import BadInput
from polyfed.core.fleet import Around, Ids, PartFleet, Stack
from polyfed.core.layer import Layer, Stage, layers
from polyfed.core.messages import Reply, Request, size
from polyfed.core.part import Parts
from polyfed.core.settings import NotNegative, Positive, settings
from polyfed.core.work import works

MEGABIT = 1e6 / 8  # bytes
KINDS: dict[str, tuple[float, float, float]] = {
    "3g": (1.6 * MEGABIT, 1.6 * MEGABIT, 0.220),
    "lte": (13 * MEGABIT, 6 * MEGABIT, 0.055),
    "wifi": (54 * MEGABIT, 54 * MEGABIT, 0.021),
}
LINEAR, NETWORK = 4, 6  # operations per row and parameter


@layers("network")
@settings
class Network(Layer):
    """Simulated time: phones on a network by name.

    Args:
        kind: '3g', 'lte' or 'wifi'; in the short form [network] it is called name.
        clock: operations a second.
        down, up: bytes a second, in place of the network's.
        latency: seconds, in place of the network's.
        communication: operations that one number on its way costs, in place of bandwidth and latency: 10, 100 or 1000
            are MOCHA's orders of magnitude; the name does not matter then.
    """

    stage: ClassVar[Stage] = "transport"

    kind: Literal["3g", "lte", "wifi"] = "lte"
    clock: Positive = 1e9
    down: Positive | None = None
    up: Positive | None = None
    latency: NotNegative | None = None
    communication: Positive | None = None

    def check(self, parts: Parts, clients: int) -> None:
        if self.communication is not None and (self.down is not None or self.up is not None):
            raise BadInput(
                "network.communication takes the place of network.down and network.up. "
                f"Found communication = {self.communication:g} beside one of them; leave one way out."
            )

    def fleet(self, inner: PartFleet) -> PartFleet:
        if self.communication is not None:
            return Relative(inner, clock=self.clock, communication=self.communication, latency=self.latency or 0.0)
        given = self.down, self.up, self.latency
        down, up, latency = (
            own if own is not None else known for own, known in zip(given, KINDS[self.kind], strict=True)
        )
        return Timed(inner, clock=self.clock, down=down, up=up, latency=latency)


class Timed(Around):
    """A fleet whose rounds take simulated seconds."""

    def __init__(self, inner: PartFleet, *, clock: float, down: float, up: float, latency: float) -> None:
        super().__init__(inner)
        self._figures = clock, down, up, latency
        self._round, self._d, self.seconds = -1, 0, 0.0
        self._lock = threading.Lock()

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        if not len(clients):
            yield from self.inner.ask(clients, request)
            return
        places = {client: i for i, client in enumerate(clients)}
        self._begin(request)
        slowest = 0.0
        for stack in self.inner.ask(clients, request):
            for i, client in enumerate(stack.clients):
                slowest = max(slowest, self._time(request, places[client], client, stack, i))
            yield stack
        with self._lock:
            self.seconds += slowest or self._time(request, 0, clients[0], None, 0)

    def report(self) -> dict[str, Any]:
        return {"simulated_seconds": self.seconds if self._round == self.clock.round else 0.0}

    def _begin(self, request: Request) -> None:
        with self._lock:
            if self.clock.round != self._round:
                self._round, self.seconds = self.clock.round, 0.0
            model = request.each.get("w", request.shared.get("x"))
            if model is not None:
                self._d = model.shape[-1]

    def _time(self, request: Request, place: int, client: int, stack: Stack | None, i: int) -> float:
        row = request.row(place)
        reply = None if stack is None else Reply({name: a[i] for name, a in stack.arrays.items()})
        return self._cost(self._flops(row, client, stack, i), row, reply)

    def _cost(self, flops: float, row: Request, reply: Reply | None) -> float:
        """Equation 30; a node that did not answer has sent nothing."""
        clock, down, up, latency = self._figures
        got = 0 if reply is None else reply.nbytes
        return flops / clock + size(row.head(), row.arrays()) / down + got / up + latency

    def _flops(self, row: Request, client: int, stack: Stack | None, i: int) -> float:
        """A node with a budget is waited for as long as its budget takes: a global clock cycle (section 3.4)."""
        done = float(stack["steps"][i]) if stack is not None and "steps" in stack.arrays else 0.0
        if "budget" in row.each or done:
            return LINEAR * self._d * max(done, float(row.each.get("budget", 0)))
        work = works[row.work]
        if work.cost is None:
            return 0.0
        n, held = int(self.examples[client]), int(self.holds[client].sum())
        return NETWORK * self._d * work.cost(work.parse(row.options), n, held)


class Relative(Timed):
    """Communication counted in operations: `communication` of them for a number on its way (section 5.3)."""

    def __init__(self, inner: PartFleet, *, clock: float, communication: float, latency: float) -> None:
        super().__init__(inner, clock=clock, down=math.inf, up=math.inf, latency=latency)
        self._communication = communication

    def _cost(self, flops: float, row: Request, reply: Reply | None) -> float:
        clock, _, _, latency = self._figures
        travel = [*row.shared.values(), *row.each.values(), *(() if reply is None else reply.arrays.values())]
        numbers = sum(int(array.numel()) for array in travel)
        return (flops + self._communication * numbers) / clock + latency
