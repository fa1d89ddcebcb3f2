"""A client that keeps missing exchanges is asked again after growing pauses."""

from __future__ import annotations

from itertools import pairwise

from polyfed.core.patience import LONGEST, Patience


def asked(patience: Patience, rounds: range, client: int = 3) -> list[int]:
    """The rounds in which a client that never answers is asked, once each."""
    found = []
    for t in rounds:
        if patience.due(client, t):
            found.append(t)
            patience.missed(client, t)
    return found


def test_pauses_grow_and_have_an_end() -> None:
    patience = Patience()
    assert asked(patience, range(1, 40)) == [1, 2, 3, 5, 9, 17, 33]
    later = asked(patience, range(40, 600))
    assert {b - a for a, b in pairwise(later[2:])} == {LONGEST}
    assert patience.due(4, 1)  # the others are none the worse


def test_the_second_miss_ends_the_round() -> None:
    patience = Patience()
    patience.missed(0, 5)
    assert patience.due(0, 5)
    patience.missed(0, 5)
    assert not patience.due(0, 5)
    assert patience.why(0) == "missed too many exchanges; asked again in round 6"
    assert patience.due(0, 6)


def test_an_answer_ends_the_pause_and_enough_of_them_forgive_all() -> None:
    patience = Patience()
    asked(patience, range(1, 10))
    patience.answered(3)
    assert patience.due(3, 10)
    for _ in range(20):
        patience.answered(3)
    assert patience.tree() == {}
    patience.missed(3, 10)
    assert patience.due(3, 10)


def late(patience: Patience, every: int, rounds: int = 300) -> int:
    """How many deadlines a client costs that is late each so many times that it is asked."""
    times = missed = 0
    for t in range(1, rounds):
        if patience.due(0, t):
            times += 1
            if times % every:
                patience.answered(0)
            else:
                patience.missed(0, t)
                missed += 1
    return missed


def test_who_is_late_every_second_time_costs_few_deadlines() -> None:
    assert late(Patience(), every=2) <= 20  # of 150, were an answer to forgive all
    assert late(Patience(), every=4) == 74  # seldom late: never left out


def test_it_is_saved_with_the_run() -> None:
    patience, again = Patience(), Patience()
    asked(patience, range(1, 8))
    patience.missed(1, 7)
    again.load(patience.tree())
    assert asked(again, range(8, 100)) == asked(patience, range(8, 100))
    again.load({})
    assert again.due(3, 1)
    assert again.tree() == {}


def test_pauses_never_leave_an_exchange_without_anybody() -> None:
    patience = Patience()
    asked(patience, range(1, 4))
    assert patience.among([1, 3, 5], 4) == [1, 5]
    assert patience.among([3], 4) == [3]
