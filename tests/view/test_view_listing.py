"""The list of runs: what is in it, what is only looked at when it changed, and what breaks nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from polyfed.core.errors import BadInput
from polyfed.view.listing import Folder
from polyfed.view.reading import TAIL, last_lines, read
from polyfed.view.rows import Row
from rundirs import add_round, write_front, write_run


def looked(root: Path) -> dict[str, Row]:
    folder = Folder(root)
    folder.look()
    return folder.rows


def test_runs_at_any_depth_with_what_they_are_told_apart_by(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "deep" / "er" / "b", rounds=3, done=False, seed=7)
    (tmp_path / "notes").mkdir()
    write_run(tmp_path / ".hidden")
    rows = looked(tmp_path)
    assert sorted(rows) == ["a", "deep/er/b"]
    a, b = rows["a"], rows["deep/er/b"]
    assert (a["state"], a["round"], a["rounds"]) == ("done", 8, 8)
    assert (b["state"], b["round"], b["rounds"]) == ("stopped", 3, 6)
    assert a["tags"]["algorithm"] == "fedcmoo"
    assert b["tags"] == {
        "experiment": "two-digits", "algorithm": "fedcmoo", "data": "two-digits", "engine": "local", "seed": "7",
    }  # fmt: skip
    last = json.loads((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[-1])
    assert a["losses"] == last["losses"]
    assert a["loss"] == pytest.approx(sum(last["losses"].values()) / 2)
    assert (a["metric"], a["value"]) == ("accuracy", pytest.approx(1 - a["loss"] / 2.5))


def test_a_study_is_a_group(tmp_path: Path) -> None:
    write_front(tmp_path / "front-x", points=2, rounds=2)
    write_run(tmp_path / "compare-x" / "cell", rounds=2)
    (tmp_path / "compare-x" / "study.json").write_text('{"kind": "compare", "state": "running"}')
    folder = Folder(tmp_path)
    folder.look()
    assert folder.groups["front-x"]["kind"] == "front"
    assert (folder.groups["compare-x"]["kind"], folder.groups["compare-x"]["state"]) == ("compare", "running")
    assert {id: row["group"] for id, row in folder.rows.items()} == {
        "front-x/preference-0": "front-x", "front-x/preference-1": "front-x", "compare-x/cell": "compare-x",
    }  # fmt: skip


def test_a_run_or_a_front_itself_may_be_viewed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=2)
    folder = Folder(tmp_path / "a")
    folder.look()
    assert folder.rows["."]["name"] == "a"
    assert folder.path(".") == tmp_path / "a"
    front = Folder(write_front(tmp_path / "front", points=2, rounds=2))
    front.look()
    assert {row["group"] for row in front.rows.values()} == {"."}


def test_a_running_run_is_one_whose_lock_is_held(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=2, done=False)
    folder = Folder(tmp_path)
    with FileLock(run / ".lock"):
        folder.look()
        assert folder.rows["a"]["state"] == "running"
    assert [row["state"] for row in folder.look().rows] == ["stopped"]
    with FileLock(run / ".lock", timeout=0):  # looking left nobody's lock taken
        pass


def settle(root: Path) -> None:
    """Directories of the past: their times tell of every change."""
    for path in [root, *root.rglob("*")]:
        os.utime(path, (time.time() - 100, time.time() - 100))


def test_only_what_changed_is_told_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write_run(tmp_path / name, rounds=2, done=name != "b")
    settle(tmp_path)
    folder = Folder(tmp_path)
    assert len(folder.look().rows) == 3
    reads: list[str] = []

    def counted(path: Path, *rest: Any) -> bytes:
        reads.append(path.parent.name)
        return read(path, *rest)

    def counted_tail(path: Path) -> list[bytes]:
        reads.append(path.parent.name)
        return last_lines(path)

    monkeypatch.setattr("polyfed.view.listing.read", counted)
    monkeypatch.setattr("polyfed.view.listing.last_lines", counted_tail)
    assert not folder.look()
    assert reads == []
    add_round(tmp_path / "b", 3)
    assert [(row["id"], row["round"]) for row in folder.look().rows] == [("b", 3)]
    assert set(reads) == {"b"}
    assert not folder.look()


def test_what_comes_and_goes_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=1)
    folder = Folder(tmp_path)
    folder.look()
    write_run(tmp_path / "b", rounds=1)
    assert [row["id"] for row in folder.look().rows] == ["b"]
    (tmp_path / "a").rename(tmp_path / "c")
    change = folder.look()
    assert ([row["id"] for row in change.rows], change.gone) == (["c"], ["a"])


def test_a_run_that_ends_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=2)
    result = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    folder = Folder(tmp_path)
    folder.look()
    assert folder.rows["a"]["state"] == "stopped"
    (run / "result.json").write_bytes(result)
    assert [row["state"] for row in folder.look().rows] == ["done"]


BROKEN: dict[str, dict[str, bytes]] = {
    "toml": {"experiment.toml": b"= broken"},
    "binary": {"experiment.toml": b"\xff\xfe\x00"},
    "deep": {"experiment.toml": b"a = " + b"[" * 5000},
    "large": {"experiment.toml": b"# " + b"x" * (5 << 20)},
    "result": {"result.json": b"{"},
    "result-deep": {"result.json": b"[" * 100_000},
    "no objectives": {"result.json": b"{}"},
    "objectives": {"result.json": b'{"objectives": [1, 2]}'},
}
ODD: dict[str, dict[str, bytes]] = {
    "types": {"experiment.toml": b'rounds = "x"\nseed = [1]\ndata = 3\nname = 1979-05-27', "result.json": b""},
    "numbers": {"result.json": b'{"objectives": {"a": {"loss": NaN, "x": 1e999}, "b": 3}, "rounds": -1}'},
    "lines": {"metrics.jsonl": b'nonsense\n{"round": "x"}\n[1]\n\xff\n{"round": 2, "losses": {"a": null}}\n{"cut'},
    "huge": {"metrics.jsonl": b'{"round": 1' + b"0" * 400 + b', "losses": {"a": 1' + b"0" * 400 + b"}}\n"},
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_listed_with_a_sentence_and_breaks_nothing(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "good", rounds=1)
    _spoil(tmp_path, name, BROKEN)
    rows = looked(tmp_path)
    assert rows["good"]["state"] == "done"
    assert rows["bad"]["state"] == "broken"
    assert 20 < len(rows["bad"]["why"]) < 400
    assert rows["bad"]["why"].endswith(".")


@pytest.mark.parametrize("name", ODD)
def test_odd_files_break_nothing(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "good", rounds=1)
    _spoil(tmp_path, name, ODD)
    rows = looked(tmp_path)
    assert rows["good"]["state"] == "done"
    json.dumps(rows, allow_nan=False)


def _spoil(root: Path, name: str, kinds: dict[str, dict[str, bytes]]) -> None:
    run = write_run(root / "bad", rounds=1)
    if "metrics.jsonl" in kinds[name]:
        (run / "result.json").unlink()
    for file, data in kinds[name].items():
        (run / file).write_bytes(data)
        if not data:
            (run / file).unlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a system with links and pipes")
@pytest.mark.parametrize("file", ["experiment.toml", "result.json", "metrics.jsonl"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_links_out_of_the_folder_and_pipes_are_not_read(tmp_path: Path, file: str, kind: str) -> None:
    secret = write_run(tmp_path / "elsewhere", rounds=1, done=file == "result.json", name="secret") / file
    root = tmp_path / "runs"
    run = write_run(root / "bad", rounds=1, done=file == "result.json")
    (run / file).unlink()
    if kind == "link":
        (run / file).symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(run / file)
    else:
        (run / file).mkdir()
    rows = looked(root)
    assert rows["bad"]["state"] == "broken"
    assert "secret" not in json.dumps(rows)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a system with pipes")
def test_a_lock_that_is_a_pipe_keeps_nobody(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=1, done=False)
    os.mkfifo(run / ".lock")
    assert looked(tmp_path)["a"]["state"] == "stopped"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a system with links")
def test_linked_folders_are_not_entered(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere" / "secret", rounds=1)
    root = tmp_path / "runs"
    write_run(root / "a", rounds=1)
    (root / "out").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    (root / "run").symlink_to(tmp_path / "elsewhere" / "secret")
    folder = Folder(root)
    folder.look()
    assert sorted(folder.rows) == ["a"]
    (root / "a").rename(tmp_path / "moved")  # and one that becomes a link later is not opened
    (root / "a").symlink_to(tmp_path / "moved")
    with pytest.raises(BadInput, match="no longer"):
        folder.path("a")


OTHERS = (
    "..",
    "../a",
    "a/..",
    "a/../a",
    "/etc",
    "/",
    "",
    "a/",
    "./a",
    "a/checkpoints",
    "a\x00",
    "b",
    "a/metrics.jsonl",
)


@pytest.mark.parametrize("id", OTHERS)
def test_only_what_is_listed_has_a_path(tmp_path: Path, id: str) -> None:
    write_run(tmp_path / "a", rounds=1)
    (tmp_path / "a" / "checkpoints").mkdir()
    folder = Folder(tmp_path)
    folder.look()
    assert folder.path("a") == tmp_path / "a"
    with pytest.raises(BadInput):
        folder.path(id)


def test_a_folder_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no folder"):
        Folder(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is a file"):
        Folder(tmp_path / "file")


def test_a_folder_that_may_not_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a", rounds=1)
    write_run(tmp_path / "b", rounds=1)
    scan = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr("polyfed.view.listing.os.scandir", refused)
    assert sorted(looked(tmp_path)) == ["a"]


def test_the_end_of_a_large_file_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = b'{"round": %d, "x": "' + b"x" * 1000 + b'"}\n'
    path.write_bytes(b"".join(line % i for i in range(1, 1001)) + b'{"cut')
    lines = last_lines(path)
    assert json.loads(lines[-1])["round"] == 1000
    assert sum(map(len, lines)) <= TAIL
    path.write_bytes(b"short\n" + b"y" * (3 * TAIL) + b"\n")
    assert last_lines(path)[-1] == b"y" * (3 * TAIL)  # a line that is longer than that is read whole
    path.write_bytes(b"no line yet")
    assert last_lines(path) == []
    with pytest.raises(BadInput, match="larger"):
        read(path, most=5)
