"""What clients remember: arrays for a round, state for good, and never other than the server thinks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from polyfed import Layer
from polyfed.client.memory import Job, Memory
from polyfed.core.door import Door
from polyfed.core.errors import NobodyAnswered
from polyfed.core.fleet import Around, Ids, PartFleet, Stack
from polyfed.core.keys import key
from polyfed.core.messages import Request
from small import small_problem
from toys import door, engine_of


def test_what_a_round_sent_is_forgotten_in_the_next(engine: str) -> None:
    fleet = door(engine)
    fleet.begin(1)
    list(fleet.ask([0, 1], Request("toy-gradient", small_problem().initial())))
    fleet.begin(2)
    with pytest.raises(NobodyAnswered, match="carries no array 'x'"):
        list(fleet.ask([0, 1], Request("toy-agreement", {"direction": torch.zeros(small_problem().dim)})))


def test_a_client_that_was_not_asked_first_has_no_model(engine: str) -> None:
    fleet = door(engine)
    fleet.begin(1)
    list(fleet.ask([0], Request("toy-gradient", small_problem().initial())))
    stacks = list(fleet.ask([0, 1], Request("toy-agreement", {"direction": torch.zeros(small_problem().dim)})))
    assert [c for s in stacks for c in s.clients] == [0]
    assert fleet.failures[0][0] == 1


class Lossy(Around):
    """Loses some replies after the work was done."""

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        for stack in self.inner.ask(clients, request):
            lost = [c for c in stack.clients if request.work == "toy-save" and key(9, request.round, c) % 3 == 0]
            yield stack.drop(dict.fromkeys(lost, "lost on the way"))


class Loss(Layer):
    stage = "transport"

    def fleet(self, inner: PartFleet) -> PartFleet:
        return Lossy(inner)


def save(fleet: Door, cohort: list[int], amounts: torch.Tensor, books: torch.Tensor) -> None:
    for stack in fleet.ask(cohort, Request("toy-save", each={"amount": amounts})):
        books[list(stack.clients)] += stack["saved"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_lost_replies_never_leave_client_and_server_apart(engine: str, interrupted: bool) -> None:
    fleet = door(engine, [Loss()])
    books = torch.zeros(6)
    lost = 0
    for t in range(1, 20):
        fleet.begin(t)
        cohort = fleet.cohort(t)
        save(fleet, cohort, torch.tensor([float(10 * t + c) for c in cohort]), books)
        lost += len(fleet.failures)
        if interrupted and t % 5 == 0:  # everything through a checkpoint into a fresh fleet
            clock, tree = fleet.clock.tree(), engine_of(fleet).tree()
            fleet = door(engine, [Loss()])
            fleet.clock.load(clock)
            engine_of(fleet).load(tree)
    fleet.begin(20)
    totals = torch.cat([s["total"] for s in fleet.ask(range(6), Request("toy-balance"))])
    assert lost > 5
    assert torch.equal(totals, books)


def test_within_a_round_work_starts_from_what_the_server_used() -> None:
    memory = Memory()

    def ask(round: int, exchange: int, folded: int) -> Job:
        request = Request("toy-save", round=round, exchange=exchange, folded=torch.tensor(folded))
        return memory.job(0, request)

    first = ask(1, 0, -1)
    assert first.state is None
    memory.keep(first, {"n": torch.tensor(1)})
    second = ask(1, 1, first.request.tick)
    assert second.state is not None
    assert second.state["n"] == 1
    memory.keep(second, {"n": torch.tensor(2)})
    third = ask(2, 0, first.request.tick)  # the second reply was lost
    assert third.state is not None
    assert third.state["n"] == 1
