"""Clients that fail whenever they are asked are said at a run's end."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.run.display import show
from polyfed.run.failing import never_used, plain_names


def line(cohort: list[int], *failed: int) -> dict[str, Any]:
    return {"cohort": cohort, "failures": [{"client": c, "why": "it is off"} for c in failed]}


def named(client: int) -> str:
    return f"client {'abcdefgh'[client]!r}"


def test_who_failed_every_time_is_named_and_who_failed_once_is_not() -> None:
    history = [line([0, 1, 2], 1, 2), line([0, 1, 3], 1, 3), line([0, 2], 0)]
    assert never_used(history, named) == ["Client 'b' failed in every round in which it was asked, 2 of 3 (it is off)."]
    assert never_used(history[:1], named)[1].startswith("Client 'c' failed in every round")  # the only round
    assert never_used([], named) == []
    assert never_used([line([0], 7), line([1], 7)], named) == []  # it could not be measured, and was never trained
    refused = {"cohort": [0], "failures": [{"client": None, "why": "a stranger"}]}
    assert never_used([refused, refused], named) == []


def test_five_are_named() -> None:
    everybody = list(range(8))
    *some, rest = never_used([line(everybody, *everybody)] * 2, named)
    assert len(some) == 5
    assert rest == "So did 3 more."


def test_the_summary_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    some = {"algorithm": "a", "rounds": 1, "seed": 0, "objectives": {"y": {"loss": 1.0}}, "seconds": 1.0, "run": "r"}
    show({**some, "bytes_up": 1, "bytes_down": 1, "engine": "local", "failures": 2, "never_used": ["Client 3 failed."]})
    assert "Client 3 failed.\n" in capsys.readouterr().out


def test_names_in_files_are_texts_and_numbers() -> None:
    assert plain_names(["a", 1, 2.5, ("a", 1)]) == ["a", 1, 2.5, "('a', 1)"]
