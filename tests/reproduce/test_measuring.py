"""Figures from lines of metrics: splits, means over objectives, targets, logarithms."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.core.errors import BadInput
from polyfed.reproduce.item import Measure
from polyfed.reproduce.measuring import points_of, value_of

LINES: list[dict[str, Any]] = [
    {
        "round": i, "bytes_up": 10, "seconds": 1.0, "simulated_seconds": 0.5, "primal": 100.0 / i, "split": "test",
        "losses": {"a": 1 / i, "b.c": 2 / i}, "metrics": {"a": {"accuracy": 0.1 * i}, "b.c": {"accuracy": 0.05 * i}},
        "splits": {"train": {"losses": {"a": 0.5 / i, "b.c": 1 / i}, "metrics": {}}},
        "clients": {"a": {"accuracy": {"std": 0.01 * i}}},
    }
    for i in range(1, 6)
]  # fmt: skip
LINES.insert(2, {"round": 3, "bytes_up": 10, "seconds": 1.0})
for place, line in enumerate(LINES, 1):
    line["round"] = place


def value(of: str, **more: Any) -> float | None:
    about: dict[str, Any] = {"name": "m", "title": "m", "of": of, "better": "lower", **more}
    return value_of(Measure(**about), LINES)


def test_what_is_found() -> None:
    assert value("a.loss") == pytest.approx(0.2)
    assert value("b.c.accuracy") == pytest.approx(0.25)
    assert value("mean.loss") == pytest.approx(0.3)
    assert value("worst.loss") == pytest.approx(0.4)
    assert value("best.loss") == pytest.approx(0.2)
    assert value("worst.accuracy", better="higher") == pytest.approx(0.25)
    assert value("a.loss", split="train") == pytest.approx(0.1)
    assert value("a.loss", split="test") == pytest.approx(0.2)
    assert value("first.loss") == pytest.approx(0.2)
    assert value("second.accuracy") == pytest.approx(0.25)
    assert value("primal") == pytest.approx(20)
    assert value("clients.a.accuracy.std") == pytest.approx(0.05)


def test_what_is_taken() -> None:
    assert value("a.loss", last=2) == pytest.approx((0.2 + 0.25) / 2)
    assert value("primal", take="best") == pytest.approx(20)
    assert value("primal", scale="log10") == pytest.approx(1.30103)
    assert value("a.accuracy", scale=100, better="higher") == pytest.approx(50)


@pytest.mark.parametrize(("cost", "spent"), [("rounds", 4), ("bytes_up", 40), ("seconds", 4.0)])
def test_what_a_target_costs(cost: str, spent: float) -> None:
    assert value("a.loss", take="reach", target=0.34, cost=cost) == spent
    assert value("a.loss", take="reach", target=0.01, cost=cost) is None


def test_curves_know_simulated_seconds_which_no_target_is_counted_in() -> None:
    spent = [point.spent["simulated_seconds"] for point in points_of("a.loss", "", "lower", LINES)]
    assert spent == [0.5, 1.0, 1.5, 2.0, 2.5]
    with pytest.raises(ValueError, match="'rounds', 'bytes_up' or 'seconds'"):
        value("a.loss", take="reach", target=0.34, cost="simulated_seconds")


def test_evaluations_count_until_a_limit() -> None:
    assert value("a.loss", limit=4) == pytest.approx(1 / 3)
    assert value("a.loss", limit=4, last=2) == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert value("a.loss", limit=25, cost="bytes_up") == pytest.approx(1 / 2)
    assert value("a.loss", limit=0.5) is None
    about: dict[str, Any] = {"name": "m", "title": "m", "of": "a.loss", "better": "lower"}
    assert value_of(Measure(**about, limit=4, quick_limit=1), LINES, quick=True) == 1
    assert value_of(Measure(**about, last=2, quick_last=1), LINES, quick=True) == pytest.approx(0.2)


def test_a_quick_run_has_its_own_target() -> None:
    about: dict[str, Any] = {"name": "m", "title": "m", "of": "a.loss", "better": "lower"}
    measure = Measure(**about, take="reach", target=0.01, quick_target=0.5)
    assert (value_of(measure, LINES), value_of(measure, LINES, quick=True)) == (None, 2)


def test_what_is_not_there_is_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"has 'a.los'. Did you mean 'a.loss'\?"):
        value("a.los")
    assert [point.spent["round"] for point in points_of("a.loss", "", "lower", LINES)] == [1, 2, 4, 5, 6]


def test_a_run_that_diverged_has_no_loss_at_the_end() -> None:
    lines: list[dict[str, Any]] = [
        {"round": 1, "losses": {"left": 1.0, "right": 2.0}, "metrics": {"left": {"accuracy": 0.5}}},
        {"round": 2, "losses": {"left": 0.9, "right": None}, "metrics": {"left": {"accuracy": 0.6}}},
        {"round": 3},
    ]
    about: dict[str, Any] = {"name": "m", "title": "m", "better": "lower"}
    found = [value_of(Measure(**about, of=f"{of}.loss"), lines) for of in ("left", "right", "mean", "worst")]
    assert found == [0.9, None, None, None]
    assert value_of(Measure(**about, of="left.accuracy"), lines) == 0.6
    assert value_of(Measure(**about, of="right.loss", take="best"), lines) == 2.0
