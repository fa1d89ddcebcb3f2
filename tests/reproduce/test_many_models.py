"""Drivers of the multi-model paper: the testbed's short form is the library's run, and gains are counted as defined."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyfed.core.settings import Settings
from polyfed.reproduce import sharing
from polyfed.reproduce.papers.many_models import testbed, training
from polyfed.reproduce.papers.many_models.training import Hits, gain


@pytest.mark.parametrize(("schedule", "M", "rate"), [("mfa-rand", 3, "constant"), ("mfa-rr", 4, "decaying")])
def test_the_short_form_is_the_librarys_run(schedule: str, M: int, rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "CHECKED", 5)
    assert testbed.places({"schedule": schedule, "models": M, "rate": rate, "E": 2}, seed=1) > 9


def test_gaps_have_their_curve() -> None:
    about = {"schedule": "mfa-rr", "models": 2, "rate": "constant", "E": 5, "rounds": 8, "every": 4}
    found = testbed.gaps(about, seed=1)
    curve = found["curves"]["gap"]
    assert curve["x"]["round"] == [4, 8]
    assert found["values"] == {"gap": curve["y"][-1], "inside": found["values"]["inside"], "places": None}
    assert curve["y"][0] > found["values"]["inside"] != curve["y"][1]
    assert curve["y"][1] < curve["y"][0]


def test_the_testbeds_gain_is_of_first_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "GAPS", {"gain": -2.0, "shallow": -1.7})
    testbed.hits.cache_clear()
    try:
        alone, together = testbed.hits("mfa-rr", 1, 10, 0), testbed.hits("mfa-rand", 4, 10, 3)
        found = testbed.gain({"schedule": "mfa-rand", "models": 4, "E": 10}, 3)["values"]
    finally:
        testbed.hits.cache_clear()
    assert found == {name: 4 * alone[name] / together[name] for name in ("gain", "shallow")}
    assert alone["shallow"] < alone["gain"] <= together["gain"]


class Stopped:
    """Stands for a run, and notes whether it was ended."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


def line(t: int, **accuracies: float) -> dict[str, Any]:
    """An evaluation whose models are as accurate on both splits."""
    metrics = {f"{name}/class": {"accuracy": value} for name, value in accuracies.items()}
    return {"round": t, "metrics": metrics, "splits": {"train": {"metrics": metrics}}}


@pytest.mark.parametrize(("at_once", "end"), [(False, 4), (True, 6)])
def test_each_and_all_at_once(at_once: bool, end: int) -> None:
    hits = Hits({split: {"a": 0.5, "b": 0.7} for split in training.SPLITS}, at_once)
    run: Any = Stopped()
    for t, a, b in ((2, 0.6, 0.6), (4, 0.4, 0.8), (6, 0.5, 0.7)):
        if not run.stopped:
            hits.on_evaluation(run, line(t, a=a, b=b))
    assert max(hits.at) == end
    assert hits.last("train") == 4
    assert hits.once == ({"train": 6, "test": 6} if at_once else {})


def test_rows_of_a_table_share_their_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[list[str], int]] = []

    def train(experiment: Settings, models: Mapping[str, str], rounds: int, every: int, hits: Hits) -> None:
        trained.append((list(models), rounds))
        hits.at[every] = {split: dict.fromkeys(models, 0.5) for split in training.SPLITS}
        hits.first |= {(split, name): every for split in training.SPLITS for name in models}
        hits.once |= dict.fromkeys(training.SPLITS, 4 * every)

    monkeypatch.setattr(training, "_train", train)
    monkeypatch.setattr(sharing, "MEMO", SimpleNamespace(name=str(tmp_path)))
    about = {"rounds": 10, "M": 2, "at_once": True, "models": {"a": {}, "b": {}}}
    rows = [("mfa-rr", "a"), ("mfa-rr", "b"), ("mfa-rand", "a")]
    found = [gain({**about, "of": of, "schedule": {"name": name}}, 0)["values"] for name, of in rows]
    assert found[0] == found[1] == found[2]
    assert found[0]["gain_test"] == 2 * 10 / 2
    assert found[0]["once_test"] == 2 * 10 / 8
    assert found[0]["alone_train"] == 50.0
    together = (["a", "b"], 2 * 2 * 10)
    assert trained == [(["a"], 10), (["b"], 10), together, together]


def test_who_does_not_get_there_has_a_gain_of_a_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(experiment: Settings, models: Mapping[str, str], rounds: int, every: int, hits: Hits) -> None:
        hits.at[every] = {split: dict.fromkeys(models, 0.5) for split in training.SPLITS}

    monkeypatch.setattr(training, "_train", train)
    monkeypatch.setattr(sharing, "MEMO", SimpleNamespace(name=str(tmp_path)))
    found = gain({"rounds": 10, "M": 4, "at_once": False, "schedule": {"name": "mfa-rr"}}, 0)["values"]
    assert found["gain_train"] == 0.5
    assert found["share_train"] == 0.125
    assert found["once_train"] is None


def test_a_gap_that_is_never_reached_counts_as_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "MOST", 3)
    testbed.hits.cache_clear()
    assert set(testbed.hits("mfa-rr", 2, 1, 0).values()) == {3}
    testbed.hits.cache_clear()
