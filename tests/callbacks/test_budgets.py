"""Budgets: the round that goes beyond them is the last, whatever was spent before a resume."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from polyfed import BadInput, Callback, FedAvg, train
from polyfed.callbacks import ByteBudget, TimeBudget
from small import small_federation, small_problem


def trained(*callbacks: Callback, rounds: int = 6, **more: Any) -> Any:
    return train(small_problem(), small_federation(), FedAvg(), rounds=rounds, callbacks=list(callbacks), **more)


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_bytes(way: Literal["up", "down", "both"]) -> None:
    free = trained(rounds=1).history[0]
    each = sum(free[f"bytes_{one}"] for one in (("up", "down") if way == "both" else (way,)))
    result = trained(ByteBudget(bytes=2.5 * each, way=way))
    assert result.summary["rounds"] == 3
    assert result.summary["stopped"].startswith("Stopped after round 3: the budget of ")


def test_seconds() -> None:
    result = trained(TimeBudget(seconds=1e-9))
    assert result.summary["rounds"] == 1
    assert result.summary["stopped"] == "Stopped after round 1: the time budget of 1e-09 s is spent."
    assert trained(TimeBudget(seconds=3600)).summary["rounds"] == 6


def test_what_was_spent_before_a_resume_counts_and_a_larger_budget_goes_on() -> None:
    each = sum(trained(rounds=1).history[0][f"bytes_{way}"] for way in ("up", "down"))
    budget = ByteBudget(bytes=2 * each)
    assert trained(budget, out="r").summary["rounds"] == 2
    assert trained(budget, out="r", resume=True).summary["rounds"] == 2
    larger = trained(ByteBudget(bytes=4 * each), out="r", resume=True)
    assert larger.summary["rounds"] == 4
    assert trained(out="r", resume=True).summary["model_sha256"] == trained().summary["model_sha256"]


def test_a_budget_is_positive() -> None:
    with pytest.raises(BadInput, match=r"TimeBudget.seconds should be greater than 0. Found 0"):
        TimeBudget(seconds=0)
    with pytest.raises(BadInput, match=r"The key 'callbacks.bytes' is needed"):
        train(small_problem(), small_federation(), FedAvg(), callbacks=["byte-budget"])
