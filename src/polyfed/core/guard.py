"""The guard: replies that are far longer than the cohort's are left out of an exchange, and named.

What is compared is the length (Euclidean norm) of every update and gradient, of arrays with a row for each objective of
every row apart; of compressed Jacobians the lengths, by objective, of what they unpack to; how far each buffer is from
the server's; and losses, to which 1 is added where they are entropies, because a model that fits most clients has next
to no loss there. Where clients multiply by their weights before they send, lengths are per unit of the weight that the
server knows. A reply is *far* when one of its lengths is above `FACTOR` times the cohort's median, or for losses
without a unit `LOOSE` times that; zeros (objectives that a client does not hold) and negative ones (of clients whose
objectives count for nothing, `core/validate.py`) do not count in it.

Memory stays flat, and the decisions are the same however an engine groups its replies into stacks. Clients come in the
order of the cohort. The first replies wait until `FIRST` of them are there and every objective has `KNOWN` lengths, or
`MOST_WAIT` wait; then all go on in their order. After that a reply is compared when it comes, with the median of the
first 8, 16, 32, ... replies. One that is far is set aside, at most `MOST_ASIDE` (then the farthest is dropped), and at
the end of the exchange those that are far from the median of all are dropped; the others come last.

Where a model fits most clients, their updates, gradients and losses go towards 0, and whoever it does not fit would be
far. So the median counts as at least `SHARE` of the largest median that this kind of exchange has had in the run.

Lengths that fewer than `KNOWN` clients of an exchange have are not compared: two clients cannot be told apart. `LIMIT`
holds for everybody, in every exchange (`core/validate.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from polyfed.core.fleet import Stack

FACTOR = 80.0  # times the median, or twice the clients: honest runs stay below a third (benchmarks/guard.py)
KNOWN = 4  # lengths that make a median
FIRST = 8  # replies before the first comparison: fewer than five of them cannot move its median
MOST_WAIT = 32  # replies held back at the beginning, where an objective is held by few
MOST_ASIDE = 16  # replies set aside until the end
LOOSE = 1000.0  # times as far: losses whose unit nobody knows, near 0 where a model fits most clients
SHARE = 0.1  # of the largest median so far: what the median counts as at least
LIMIT = 1e15  # the length of anything: squares of it, added up, are finite in float32

Lengths = NDArray[np.float64]  # clients x what is compared


@dataclass
class _Came:
    """A stack that has come, its lengths, and which of its replies are far."""

    stack: Stack
    lengths: Lengths
    far: NDArray[np.bool_]


class Guard:
    """One exchange's replies, compared with each other.

    Args:
        labels: what is compared, in words.
        on: whether far replies are left out, or only noted.
        twins: pairs of columns of which both have to be far.
        times: for each column how many times farther than others it may be; infinite where it is only noted.
        floor: for each column what its median counts as at least: a part of those of earlier exchanges.
    """

    def __init__(
        self,
        labels: Sequence[str],
        on: bool = True,
        twins: Sequence[tuple[int, int]] = (),
        times: Sequence[float] | Lengths | None = None,
        floor: Lengths | None = None,
    ) -> None:
        self.labels, self.on, self._twins = labels, on, twins
        self._times = np.ones(len(labels)) if times is None else np.asarray(times, dtype=np.float64)
        self._factor, self._floor = FACTOR, floor
        self.clients: list[int] = []
        self._lengths: list[Lengths] = []
        self._median: Lengths | float = np.inf  # of each column
        self._next = FIRST
        self._waits = on and bool((self._times < np.inf).any())
        self._came: list[_Came] = []  # and not gone on yet
        self._aside: list[_Came] = []  # one client each
        self._dropped: dict[int, str] = {}

    def __call__(self, stacks: Iterable[tuple[Stack, Lengths]]) -> Iterator[Stack]:
        """The stacks without the replies that are far, in the same order, those that were set aside last."""
        for stack, lengths in stacks:
            self._take(_Came(stack, lengths, np.zeros(len(lengths), dtype=bool)))
            if not self._waits:
                yield from self._go_on()
        yield from self._end()

    def _take(self, one: _Came) -> None:
        """Note the lengths, and compare those that can be; a new median is taken at 8, 16, 32, ... replies."""
        before, left = len(self.clients), 0  # who is not compared yet
        self.clients.extend(one.stack.clients)
        self._came.append(one)
        if len(one.lengths):
            self._lengths.append(one.lengths)
        while self._next <= len(self.clients):
            count, self._next = self._next, 2 * self._next
            if self.on:
                if not self._waits:
                    one.far[left : count - before] = self._far(one.lengths[left : count - before])
                    left = count - before
                self._compare_waiting(one, count)
        if self.on and not self._waits:
            one.far[left:] = self._far(one.lengths[left:])

    def _compare_waiting(self, one: _Came, count: int) -> None:
        """A median of the first replies, `one` the last among them, with which those that have waited are compared."""
        every = self._every()[:count]
        self._median, self._factor = self._typical(every), factor(count)
        if not self._waits:
            return
        unknown = np.isinf(self._median)
        if count >= MOST_WAIT or not (unknown.any() and self._missing(every, unknown)):
            self._waits = False
            for came in self._came:
                if came is not one:
                    came.far = self._far(came.lengths)

    def _missing(self, every: Lengths, unknown: NDArray[np.bool_]) -> bool:
        """Whether some have lengths in a column that is compared and has no median yet."""
        return bool(((every > 0).any(0) & unknown & (self._times < np.inf)).any())

    def _every(self) -> Lengths:
        """All lengths that have come."""
        if len(self._lengths) > 1:
            self._lengths = [np.concatenate(self._lengths)]
        return self._lengths[0]

    def _go_on(self) -> Iterator[Stack]:
        for came in self._came:
            if came.far.any():
                self._set_aside(came)
                rest = came.stack.pick(np.flatnonzero(~came.far).tolist())
                yield replace(rest, failed=came.stack.failed)
            else:
                yield came.stack
        self._came.clear()

    def _set_aside(self, came: _Came) -> None:
        for i in np.flatnonzero(came.far).tolist():
            one = came.stack.pick([i])
            self._aside.append(_Came(one, came.lengths[i : i + 1], came.far[i : i + 1]))
        while len(self._aside) > MOST_ASIDE:
            ratios = [float(self._ratios(one.lengths).max()) for one in self._aside]
            self._drop(self._aside.pop(int(np.argmax(ratios))))

    def _end(self) -> Iterator[Stack]:
        if self._lengths and (self._waits or self._aside):
            every = self._every()
            self._median, self._factor = self._typical(every), factor(len(every))
        for came in self._came if self._waits else ():
            came.far = self._far(came.lengths)
        yield from self._go_on()
        for one in self._aside:
            if self._far(one.lengths).any():
                self._drop(one)
            else:
                yield one.stack
        if self._dropped:
            from polyfed.core.fleet import Stack

            yield Stack((), {}, self._dropped)

    def _far(self, lengths: Lengths) -> NDArray[np.bool_]:
        found: Any = np.abs(lengths) > self._factor * self._times * self._median
        if not found.any():  # nearly always, and faster
            return np.zeros(len(lengths), dtype=bool)
        for one, other in self._twins:
            found[:, one] &= found[:, other]
            found[:, other] = found[:, one]
        return np.asarray(found.any(1))

    def _ratios(self, lengths: Lengths) -> Lengths:
        return np.asarray(np.abs(lengths) / self._median / self._times)

    def _drop(self, one: _Came) -> None:
        self._dropped[one.stack.clients[0]] = self._why(one.lengths[0])

    def _why(self, lengths: Lengths) -> str:
        ratios = self._ratios(lengths)
        worst = int(np.argmax(ratios))
        size = "large" if self.labels[worst].startswith("its loss") else "long"
        times, allowed = ratios[worst] * self._times[worst], self._factor * self._times[worst]
        what = f"{self.labels[worst]} is {times:.2g} times as {size} as the cohort's median"
        return f"{what}; above {allowed:g} it is left out (guard = 'off' lets it in)"

    def compare(self, clients: Sequence[int], lengths: Lengths) -> dict[int, str]:
        """Who is far and why, where the lengths of all clients are known before any reply is needed."""
        self.clients.extend(clients)
        self._lengths.append(lengths)
        if not self.on:
            return {}
        self._median, self._factor = self._typical(lengths), factor(len(lengths))
        return {clients[i]: self._why(lengths[i]) for i in np.flatnonzero(self._far(lengths)).tolist()}

    def _typical(self, lengths: Lengths) -> Lengths:
        """The median of each column, or the floor where that is more; infinite where too few are known."""
        found = medians(lengths)
        return found if self._floor is None else np.asarray(np.maximum(found, self._floor))

    def median(self) -> Lengths:
        """The median of each column over the whole exchange, 0 where too few are known."""
        if not self._lengths:
            return np.zeros(len(self.labels))
        found = medians(self._every())
        return np.asarray(np.where(np.isfinite(found), found, 0.0))

    def farthest(self, known: int = 1, compared: bool = False) -> dict[int, float]:
        """How many times the median each client's longest is, of those that have come.

        Args:
            known: lengths that make a median.
            compared: only of what is compared, and where more is allowed, as a part of that.
        """
        if not self._lengths or not self.labels:
            return {}
        every = self._every()
        median = medians(every, known)
        few = (every > 0).sum(0) < KNOWN
        if few.any() and not few.all():  # whoever is alone with an objective is measured by the others'
            median[few] = np.median(median[~few])
        times = self._times if compared else np.ones(len(median))
        with np.errstate(invalid="ignore"):
            ratios = np.abs(every) / (median * times)
        ratios[np.isinf(every) & np.isfinite(times)] = np.inf  # though the median is infinite, too
        return dict(zip(self.clients, ratios.max(1).tolist(), strict=True))


def factor(clients: int) -> float:
    """Times the median: at a fixed point, where updates cancel, one dissenter honestly has N - 1 times the others'."""
    return max(FACTOR, 2.0 * clients)


def medians(lengths: Lengths, known: int = KNOWN) -> Lengths:
    """The median of each column's lengths above zero, the upper of two; infinite where fewer than `known` are."""
    if len(lengths) >= known and lengths.min(initial=1.0) > 0:  # nearly always, and faster
        middle = len(lengths) // 2
        return np.asarray(np.partition(lengths, middle, axis=0)[middle])
    found = np.full(lengths.shape[1], np.inf)
    for i, column in enumerate(lengths.T):
        some = column[column > 0]
        if len(some) >= known:
            middle = len(some) // 2
            found[i] = np.partition(some, middle)[middle]
    return found
