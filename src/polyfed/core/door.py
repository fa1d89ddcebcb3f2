"""What an algorithm calls `fleet`, and the view of one model's clients that everything before it stands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.clock import Clock
from polyfed.core.errors import BadInput, NobodyAnswered
from polyfed.core.fleet import Around, Fleet, Ids, PartFleet, Population, Stack, Sum
from polyfed.core.keys import generator
from polyfed.core.messages import Request
from polyfed.core.problem import Problem
from polyfed.core.work import works


class PartView(PartFleet):
    """The fleet as one model sees it: its name and the time are put on every request where an exchange is made.

    Who is left out of a round has failed without being asked; it is measured all the same.
    """

    def __init__(self, inner: Fleet, part: str, population: Population, clock: Clock) -> None:
        self.inner, self.part, self.population, self.clock = inner, part, population, clock

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        clients, request, out = self._stamped(clients, request)
        for stack in self.inner.ask(clients, request) if len(clients) else ():
            self.clock.answered(stack.clients, request)
            yield stack
        if out:
            yield Stack((), {}, out)

    def sum(self, clients: Ids, request: Request) -> Sum:
        clients, request, out = self._stamped(clients, request)
        if not len(clients):
            return Sum({}, (), out)
        total = self.inner.sum(clients, request)
        self.clock.answered(total.clients, request)
        return replace(total, failed={**total.failed, **out}) if out else total

    def _stamped(self, clients: Ids, request: Request) -> tuple[Ids, Request, dict[int, str]]:
        """Who is asked, the request as it goes out to them, and who is left out."""
        never = {} if works[request.work].measures else self.clock.left_out
        out = {client: never[client] for client in clients if client in never}
        if out:
            places = [i for i, client in enumerate(clients) if client not in out]
            clients = [clients[i] for i in places]
            request = replace(request, each={name: rows[places] for name, rows in request.each.items()})
        return clients, self.clock.stamp(clients, replace(request, part=self.part)), out


class PastMeasuring(Around):
    """A layer's server half, passed by when work only measures."""

    def __init__(self, half: PartFleet, beyond: PartFleet) -> None:
        super().__init__(half)
        self._beyond = beyond

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        return self._way(request).ask(clients, request)

    def sum(self, clients: Ids, request: Request) -> Sum:
        return self._way(request).sum(clients, request)

    def _way(self, request: Request) -> PartFleet:
        return self._beyond if works[request.work].measures else self.inner


def layer_fleets(fleet: Fleet) -> list[Around]:
    """The server's halves of the layers, from the outermost on."""
    found = []
    while isinstance(fleet, Around):
        if not isinstance(fleet, Door | PastMeasuring):
            found.append(fleet)
        fleet = fleet.inner
    return found


class Door(Around):
    """What an algorithm calls `fleet`: draws cohorts, asks and sums, and notes who took part, failed or was used.

    A reply counts as used when it has passed every layer; whose state-keeping replies were used is told to the clients
    with the next request.

    Args:
        inner: the outermost layer, or the part's view of the engine.
        problem: what is learned.
        cohort: how many clients a round has.
        rounds: how many rounds there will be.
        frame: how many models are trained together: the rounds in which each client meets each of them once.
        draw: from a round and a purpose to its clients, where a schedule decides.
        always, never: clients that are in every round's cohort, and clients that are in none.
        called: from a client's number to what a sentence calls it.
    """

    def __init__(
        self,
        inner: PartFleet,
        problem: Problem,
        *,
        cohort: int,
        rounds: int = 1,
        frame: int = 1,
        draw: Callable[[int, str], list[int]] | None = None,
        always: Sequence[int] = (),
        never: Sequence[int] = (),
        called: Callable[[int], str] = "client {}".format,
    ) -> None:
        super().__init__(inner)
        self.problem, self.size, self.rounds, self.frame = problem, cohort, rounds, frame
        self._draw, self._always, self._never, self._called = draw, always, never, called
        self.remembered: Mapping[str, Any] = {}  # what the method's settings keep from round to round, by their names
        self.begin(0)

    @property
    def seed(self) -> int:
        return self.clock.seed

    @property
    def round(self) -> int:
        return self.clock.round

    def begin(self, t: int, left_out: Mapping[int, str] | None = None) -> None:
        """Start round t: exchanges are counted, and failures, participants and who trained listed, anew.

        left_out: clients that fail without being asked, and why.
        """
        self.clock.begin(t, left_out)
        self.asked: dict[int, None] = {}
        self.trained: list[tuple[list[int], Request]] = []
        self._begun = [(fleet, fleet.tree()) for fleet in layer_fleets(self)]

    def rewind(self) -> None:
        """Back to the beginning of the round, which could not be finished."""
        self.clock.rewind()
        for fleet, tree in self._begun:
            if tree:
                fleet.load(tree)

    @property
    def failures(self) -> list[tuple[int, str]]:
        """Who failed in this round, and why."""
        return self.clock.failures

    def cohort(self, t: int, purpose: str = "cohort", size: int | None = None) -> list[int]:
        """Clients for a purpose in round t, in order of their numbers; only those that have examples.

        By default as many as a round has, drawn uniformly without replacement, or as the schedule says; with a size,
        that many of all clients. Round 0 is none: it is for measuring, where nobody is left out.
        """
        if self._draw is not None and size is None:
            return [c for c in self._draw(t, purpose) if self.examples[c]]
        always, never = self._always if size is None else (), self._never if t else ()
        return draw_cohort(self.examples, self.size if size is None else size, self.seed, purpose, t, always, never)

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        if self.clock.layers.hide(works[request.work]):
            raise BadInput(f"A layer lets only sums of {request.work!r} through; Algorithm.needs should say 'replies'.")
        clients = self._asked(clients, request)
        answered = 0
        failed: dict[int, str] = {}
        for stack in self.inner.ask(clients, request):
            failed.update(stack.failed)
            answered += len(stack.clients)
            self.clock.use(stack, request)
            if len(stack.clients):
                yield stack.to_host()
        if not answered:
            raise NobodyAnswered(self._nobody(request, clients, failed), failed)

    def sum(self, clients: Ids, request: Request) -> Sum:
        clients = self._asked(clients, request)
        weighs = any(f.by for f in self.fields(request).values())
        total = self.inner.sum(clients, replace(request, weighed=weighs))
        self.clock.use(total, request)
        if not total.clients:
            raise NobodyAnswered(self._nobody(request, clients, total.failed), total.failed)
        total = total.to_host()
        return total.copied(self.fields(request)) if layer_fleets(self) else total

    def _asked(self, clients: Ids, request: Request) -> list[int]:
        """The clients as plain numbers; they take part in the round. Options that the work does not have end here."""
        works[request.work].check(request.options)
        numbers = [int(client) for client in clients]
        self.asked.update(dict.fromkeys(numbers))
        if works[request.work].local_model is not None:
            self.trained.append((numbers, request))
        return numbers

    def _nobody(self, request: Request, clients: Ids, failed: Mapping[int, str]) -> str:
        first = next((f" ({self._called(c)}: {why})" for c, why in failed.items()), "")
        asked = f"none of the {len(clients)} clients asked for {request.work!r}"
        return f"Round {self.round}: {asked} gave a usable reply{first}."

    def report(self) -> dict[str, Any]:
        """What the layers say about the round."""
        return {name: value for fleet in reversed(layer_fleets(self)) for name, value in fleet.report().items()}


def draw_cohort(
    examples: NDArray[np.int64],
    size: int,
    seed: int,
    purpose: str,
    t: int,
    always: Sequence[int] = (),
    never: Sequence[int] = (),
) -> list[int]:
    """Clients drawn uniformly without replacement among those that have examples, in order of their numbers.

    always: clients that take part, the rest being drawn from the others; never: clients that do not.
    """
    if always or never:
        first, others = [c for c in always if examples[c]], examples.copy()
        others[[*always, *never]] = 0
        return sorted([*first, *draw_cohort(others, size - len(first), seed, purpose, t)])
    able = None if examples.all() else np.flatnonzero(examples)
    there = len(examples) if able is None else len(able)
    k = min(size, there)
    drawn = np.arange(there) if k == there else np.sort(generator(seed, purpose, t).choice(there, k, replace=False))
    return [int(c) for c in (drawn if able is None else able[drawn])]
