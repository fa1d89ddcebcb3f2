"""Figures and names as people read them: percentages, digits that match, names without what only machines need."""

from __future__ import annotations

import pytest

from polyfed.report.cast import cast
from polyfed.report.digits import reading
from polyfed.report.figures import failures
from polyfed.report.records import Record
from polyfed.study.showing import figure_text


@pytest.mark.parametrize(
    ("metric", "value", "spread", "text"),
    [
        ("accuracy", 0.9107, None, "91.1 %"),
        ("accuracy", 0.9107, 0.0081, "91.1 ± 0.8 %"),
        ("loss", 0.7517, 0.02, "0.752 ± 0.020"),
        ("loss", 0.7517, None, "0.7517"),
        ("loss", 0.0451, 0.0012, "0.0451 ± 0.0012"),
        ("excess", -0.001, 0.2, "-0.001 ± 0.200"),
        ("loss", 0.0, 0.0, "0 ± 0"),
        ("loss", 123456.0, 10.0, "1.23e+05 ± 10"),
        ("loss", 1.0, float("inf"), "1 ± inf"),
    ],
)
def test_a_figure_has_as_many_digits_as_its_spread(metric: str, value: float, spread: float | None, text: str) -> None:
    assert reading(metric, value, spread) == text
    assert figure_text(metric, {"mean": value, "std": spread}) == text  # the terminal says the same


def test_runs_of_a_study_are_called_without_seed_and_checksum() -> None:
    many = {f"k{i}": 0 for i in range(6)}
    runs = [
        Record(f"preference-left{i}-seed0-0123abc{i}", {"seed": 0, "algorithm": {"name": "a", **many, f"k{i}": 1}})
        for i in range(5)
    ]
    assert [role.name for role in cast(runs)] == [f"preference-left{i}" for i in range(5)]


def test_one_failure_of_one_client_is_said_so() -> None:
    line = {"round": 1, "losses": {"a": 1.0}, "cohort": [3], "failures": [{"client": 3, "why": "It left."}]}
    figure = failures([Record.of([line], "one")])
    assert figure is not None
    assert figure.notes == ("1 failure of 1 client; a client was asked once.",)
