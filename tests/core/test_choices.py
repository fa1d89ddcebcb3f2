"""Choices made by a trial: the run's own before the disk's, nothing lost by a damaged or missing file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyfed.core import choices as module
from polyfed.core.cachefolder import cache
from polyfed.core.choices import Choices

ABOUT = {"model": ["w", [3, 2]], "device": "H200"}


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As outside of tests, in the cache folder."""
    monkeypatch.setattr(module, "cache", cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "polyfed" / "choices.json"


def number(value: object) -> bool:
    return isinstance(value, int)


def test_a_choice_is_the_runs_own_then_the_disks() -> None:
    first = Choices()
    assert first.known("chunk", ABOUT, number) is None
    first.make("chunk", ABOUT, 7, "Seven at once.")
    saved = json.loads(json.dumps(first.tree()))
    Choices().make("chunk", ABOUT, 9, "Nine at once.")  # another run, later
    assert first.known("chunk", ABOUT, number) == 7
    resumed, new = Choices(), Choices()
    resumed.load(saved)
    assert resumed.known("chunk", ABOUT, number) == 7
    assert new.known("chunk", ABOUT, number) == 9
    assert new.sentences() == ["Nine at once. Found by an earlier run."]


def test_another_kind_model_or_device_is_another_choice() -> None:
    made = Choices()
    made.make("chunk", ABOUT, 7, "Seven at once.")
    assert made.known("way", ABOUT, number) is None
    assert made.known("chunk", {**ABOUT, "device": "T4"}, number) is None
    assert made.known("chunk", dict(reversed(ABOUT.items())), number) == 7


def test_what_cannot_be_chosen_is_as_if_it_were_not_there(file: Path) -> None:
    made = Choices()
    made.make("chunk", ABOUT, "many", "Many at once.")
    assert made.known("chunk", ABOUT, number) is None
    (name,) = json.loads(file.read_text())
    for strange in ("not JSON", "[]", "[" * 100_000, json.dumps({name: 3}), json.dumps({name: {"said": "x"}}), "\xff"):
        file.write_text(strange, encoding="latin-1")
        assert Choices().known("chunk", ABOUT, number) is None
    Choices().make("chunk", ABOUT, 3, "Three at once.")
    assert Choices().known("chunk", ABOUT, number) == 3
    again = Choices()
    for odd in (None, 3, [1], {"x": 3}, {"x": {"value": 3}}):
        again.load(odd)
        assert again.sentences() == []


def test_a_folder_that_cannot_be_written_is_no_loss(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    made = Choices()
    made.make("chunk", ABOUT, 7, "Seven at once.")
    assert made.known("chunk", ABOUT, number) == 7
    assert Choices().known("chunk", ABOUT, number) is None


def test_the_file_stays_small_and_nothing_half_written_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    for i in (0, 1, 2, 0, 3):
        Choices().make("chunk", {"i": i}, i, "")
    assert [one["value"] for one in json.loads(file.read_text()).values()] == [2, 0, 3]
    assert [path.name for path in file.parent.iterdir()] == ["choices.json"]


def test_one_for_this_run_alone_is_not_on_disk(file: Path) -> None:
    made = Choices()
    made.make("chunk", ABOUT, 7, "Seven at once.", lasting=False)
    assert made.known("chunk", ABOUT, number) == 7
    assert not file.exists()


def test_each_is_said_once_and_a_resumed_run_does_not_repeat_it() -> None:
    made, shard = Choices(), Choices()
    shard.share(made)
    shard.make("chunk", ABOUT, 7, "Seven at once.")
    made.make("way", ABOUT, "stacked", "Stacked.")
    assert made.news() == ["Seven at once.", "Stacked."]
    assert made.news() == shard.news() == []
    resumed = Choices()
    resumed.load(made.tree())
    assert resumed.news() == []
    assert resumed.sentences() == ["Seven at once.", "Stacked."]
