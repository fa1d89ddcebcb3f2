"""What runs have to say in words: how they ended, whom they lost, what differs between them."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from made_runs import falling, made_line, made_run
from polyfed.report import Record
from polyfed.report.settings import differences
from polyfed.report.words import words


def test_a_summary_is_told_in_sentences(tmp_path: Path) -> None:
    summary = {
        "stopped": "Stopped after round 2: it was enough.",
        "mostly_failed": "Over half of the clients' replies failed.",
        "never_used": ["Client 3 failed in every round."],
        "callbacks_failed": ["The callback Csv failed."],
        "bounds": ["auc of 'left', 0.7, lies between 0.6 and 0.8."],
        "best": {"round": 2, "value": 0.51234, "by": "loss"},
    }
    said = words(Record.read(made_run(tmp_path / "one", falling(2), summary=summary)))
    assert said == [
        "Stopped after round 2: it was enough.", "Over half of the clients' replies failed.",
        "Client 3 failed in every round.", "The callback Csv failed.", "auc of 'left', 0.7, lies between 0.6 and 0.8.",
        "The best model by loss is that of round 2, 0.5123.",
    ]  # fmt: skip


def test_what_could_not_be_computed_is_said_with_its_reason(tmp_path: Path) -> None:
    lines = [made_line(1, {"left": 1.0}, not_computed={"left": {"auc": "one class only"}})]
    said = words(Record.read(made_run(tmp_path / "one", lines, summary={"objectives": {}})))
    assert said == ["The auc of left could not be computed: one class only."]


def test_a_run_without_a_result_says_how_far_it_is(tmp_path: Path) -> None:
    path = made_run(tmp_path / "one", falling(3), {"rounds": 10})
    assert words(Record.read(path)) == ["The run has no result yet: it stopped after 3 of 10 rounds."]
    with FileLock(path / ".lock").acquire(timeout=1):
        assert words(Record.read(path)) == ["The run is under way: 3 of 10 rounds are done."]


def test_settings_are_a_table_and_what_differs_is_named() -> None:
    one = Record.of([], "one", {"seed": 0, "algorithm": {"name": "fedavg", "lr": 0.1}, "attacks": []})
    two = Record.of([], "two", {"seed": 1, "algorithm": {"name": "fedprox", "lr": 0.1, "mu": 1.0}, "attacks": []})
    table = differences([one, two])
    rows = dict(table.rows)
    assert table.runs == ("one", "two")
    assert table.differing == ("seed", "algorithm.name", "algorithm.mu")
    assert rows["algorithm.lr"] == ("0.1", "0.1")
    assert rows["algorithm.mu"] == ("", "1")
    assert rows["attacks"] == ("[]", "[]")
