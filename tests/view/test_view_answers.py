"""What the live page is told: figures of a selection, differences, commands, fronts, and nothing outside its folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from filelock import FileLock

from polyfed.core.errors import BadInput
from polyfed.view.commands import commands, holder_of, quoted
from polyfed.view.fronts import clients, front
from polyfed.view.listing import Folder
from polyfed.view.selection import selection
from polyfed.view.shelf import FILES, TOGETHER, Shelf
from rundirs import add_round, line_of, write_front, write_run
from served import Served, served

HOSTILE = "<img src=x onerror=alert(1)>"


def shelf_of(root: Path) -> Shelf:
    folder = Folder(root)
    folder.look()
    return Shelf(folder)


def figure(told: dict[str, Any], key: str) -> dict[str, Any]:
    found = [one for one in told["figures"] if one["key"] == key]
    assert found, [one["key"] for one in told["figures"]]
    return dict(found[0])


# figures


def test_figures_of_a_run_have_the_numbers_of_its_rounds(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=5)
    told = selection(shelf_of(tmp_path), ["a"], tmp_path)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    series = {one["name"]: one["y"] for one in figure(told, "losses")["series"]}
    assert set(series) == {"left", "right"}
    for name, values in series.items():
        assert values == pytest.approx([line["losses"][name] for line in lines], rel=1e-6)
    assert told["runs"][0]["round"] == 5
    assert told["settings"]["differing"] == ()


def test_new_rounds_are_read_from_where_the_last_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "a", rounds=3, done=False)
    shelf = shelf_of(tmp_path)
    assert selection(shelf, ["a"], tmp_path)["runs"][0]["round"] == 3
    add_round(run, 4)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 5, "los')  # being written
    told = selection(shelf, ["a"], tmp_path)
    assert told["runs"][0]["round"] == 4
    assert len(figure(told, "losses")["series"][0]["y"]) == 4
    metrics = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:2]
    (run / "metrics.jsonl").write_bytes(b"".join(metrics))  # a run that was resumed from an older checkpoint
    assert selection(shelf, ["a"], tmp_path)["runs"][0]["round"] == 2


def test_a_selection_says_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=2)
    write_run(tmp_path / "b", rounds=2, algorithm={"name": "fedavg", "lr": 0.1})
    told = selection(shelf_of(tmp_path), ["a", "b", "a"], Path("runs"))
    assert [run["id"] for run in told["runs"]] == ["a", "b"]
    assert set(told["settings"]["differing"]) == {"algorithm.name", "algorithm.lr"}
    assert dict(told["settings"]["rows"])["algorithm.lr"] == ("0.3", "0.1")
    assert told["report"] == "polyfed report runs/a runs/b -o report.html"


def test_a_broken_run_among_others_is_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=2)
    broken = write_run(tmp_path / "b", rounds=2)
    (broken / "experiment.toml").write_text("= no")
    huge = write_run(tmp_path / "c", rounds=2, done=False)
    (huge / "metrics.jsonl").write_text('{"round": 1, "losses": {"a": 1' + "0" * 400 + '}, "failures": 3}\n')
    told = selection(shelf_of(tmp_path), ["a", "b", "c", "gone"], tmp_path)
    assert "a" in [run["id"] for run in told["runs"]]
    assert told["skipped"][0]["why"].startswith("b:")
    assert told["skipped"][0]["commands"][0]["command"] == f"polyfed runs repair {tmp_path}/b"
    assert any(one["why"].startswith("gone:") and not one["commands"] for one in told["skipped"])
    assert figure(told, "losses")
    json.dumps(told, allow_nan=False)


def test_a_run_without_a_round_has_no_figures_yet(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=0, done=False)
    told = selection(shelf_of(tmp_path), ["a"], tmp_path)
    assert told["figures"] == []
    assert told["runs"][0]["state"] == "stopped"


def test_too_many_runs_at_once_and_none_are_refused(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path)
    with pytest.raises(BadInput, match=f"At most {TOGETHER}"):
        selection(shelf, [str(i) for i in range(TOGETHER + 1)], tmp_path)
    with pytest.raises(BadInput, match="Choose a run"):
        selection(shelf, [], tmp_path)


def test_a_file_beyond_all_measure_is_not_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=2)
    shelf = shelf_of(tmp_path)
    with (run / "metrics.jsonl").open("r+b") as file:
        file.truncate(1 << 30)  # a hole
    told = selection(shelf, ["a"], tmp_path)
    assert told["runs"] == []
    assert "MB" in told["skipped"][0]["why"]


# commands


def test_what_to_type_for_a_run() -> None:
    path = Path("runs") / "a b"
    of = {state: [c["command"] for c in commands(path, state, {})] for state in ("done", "stopped", "broken")}
    assert of["done"][0] == "polyfed predict 'runs/a b' rows.csv"
    assert of["done"][-1] == "polyfed run 'runs/a b/experiment.toml' --out 'runs/a b-again'"
    assert of["stopped"][0] == "polyfed resume 'runs/a b'"
    assert of["broken"][0] == "polyfed runs repair 'runs/a b'"
    python = [c["command"] for c in commands(path, "stopped", {"python": True, "models": {}})]
    assert python[0] == "polyfed.train_many(..., out='runs/a b', resume=True)"
    assert not any(command.startswith("polyfed run ") for command in python)


def test_a_run_may_be_viewed_from_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_run(tmp_path / "a", rounds=2))
    told = selection(shelf_of(Path()), ["."], Path())
    assert told["runs"][0]["name"] == "a"
    assert told["runs"][0]["commands"][-1]["command"] == "polyfed run experiment.toml --out ../a-again"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs a system that tells of its locks")
def test_the_process_to_stop_is_the_one_that_holds_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=1, done=False)
    assert holder_of(run / ".lock") is None
    with FileLock(run / ".lock"):
        assert holder_of(run / ".lock") == os.getpid()
        assert commands(run, "running", {})[0]["command"] == f"kill -INT {os.getpid()}"
    assert holder_of(run / ".lock") is None


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("name", ["a\nb", "a\x03\nrm -rf x\n", "it's\x1b[2J\\", "\u202egpj.exe"])
def test_what_cannot_be_seen_is_written_out_in_a_command(name: str) -> None:
    line = quoted("printf", "%s", name)
    assert line.isprintable()  # a terminal obeys a pasted Ctrl-C even in quotes
    assert subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout == os.fsencode(name)


@pytest.mark.parametrize("name", ["$(touch x)", "a;b", "`id`", "-x", "it's"])
def test_a_name_cannot_add_to_a_command(name: str) -> None:
    import shlex

    for state in ("done", "stopped", "running", "broken"):
        for told in commands(Path("runs") / name, state, {}):
            if told["command"].startswith("polyfed "):
                words = shlex.split(told["command"])
                assert any(word.startswith(f"runs/{name}") for word in words), words


# fronts


def test_a_fronts_points_and_where_they_were(tmp_path: Path) -> None:
    write_front(tmp_path / "f", points=3, rounds=4)
    told = front(shelf_of(tmp_path), "f", Path("runs"))
    assert told["objectives"] == ["left", "right"]
    assert [point["id"] for point in told["points"]] == ["f/preference-0", "f/preference-1", "f/preference-2"]
    middle = told["points"][1]
    assert middle["preference"] == {"left": 0.5, "right": 0.5}
    assert middle["model"] == str(Path("runs") / "f" / "preference-1" / "model.safetensors")
    assert middle["use"][0] == "polyfed predict runs/f/preference-1 rows.csv"
    assert told["pick"] == "polyfed front runs/f --pick"
    track = told["tracks"]["f/preference-1"]
    assert track["rounds"] == [1, 2, 3, 4]
    losses = [line_of(round, ends=(0.45, 0.45))["losses"]["left"] for round in range(1, 5)]
    assert track["losses"]["left"] == pytest.approx(losses, rel=1e-5)
    assert track["weights"]["left"] == [0.5] * 4


def test_a_track_with_many_rounds_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    write_front(tmp_path / "f", points=1, rounds=1000)
    track = front(shelf_of(tmp_path), "f", tmp_path)["tracks"]["f/preference-0"]
    assert (track["rounds"][0], track["rounds"][-1]) == (1, 1000)
    assert len(track["rounds"]) <= 400


def test_a_front_cannot_name_runs_outside_its_folder(tmp_path: Path) -> None:
    secret = write_run(tmp_path / "elsewhere" / "secret", rounds=3)
    root = tmp_path / "runs"
    path = write_front(root / "f", points=1, rounds=2)
    told = json.loads((path / "front.json").read_text())
    names = ["../../elsewhere/secret", str(secret), "..", ".", "", "preference-0/../preference-0", None, 3, "a\x00"]
    told["points"] = [{**told["points"][0], "run": name} for name in names]
    (path / "front.json").write_text(json.dumps(told))
    found = front(shelf_of(root), "f", root)
    assert found["tracks"] == {}
    assert [point["id"] for point in found["points"]] == [""] * len(names)
    assert "model" not in found["points"][0]


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\x00"])
def test_a_front_that_cannot_be_read_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = write_front(tmp_path / "f", points=1, rounds=1)
    (path / "front.json").write_text(text)
    with pytest.raises(BadInput, match=r"front\.json"):
        front(shelf_of(tmp_path), "f", tmp_path)


@pytest.mark.parametrize(
    "text", ['{"points": 3}', '{"points": [1, {}], "objectives": [1, "a"]}', '{"hypervolume": NaN}']
)
def test_an_odd_front_breaks_nothing(tmp_path: Path, text: str) -> None:
    path = write_front(tmp_path / "f", points=1, rounds=1)
    (path / "front.json").write_text(text)
    json.dumps(front(shelf_of(tmp_path), "f", tmp_path), allow_nan=False)


def test_clients_of_a_point(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=4)
    shelf = shelf_of(tmp_path)
    asked = clients(shelf, "a")
    assert (asked["asked"], asked["least"] >= 1, asked["losses"]) == (7, True, {})
    told = {"round": 4, "split": "test", "clients": {"left": {"loss": [0.5, None, 0.1]}, "right": {"auc": [1, 2, 3]}}}
    (run / "clients.jsonl").write_text(json.dumps({**told, "names": [HOSTILE, "b"]}) + "\n")
    found = clients(shelf, "a")
    assert found["losses"] == {"left": [0.5, None, 0.1]}
    assert found["names"] == [HOSTILE, "b", "2"]
    with pytest.raises(BadInput):
        clients(shelf, "nobody")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a system with links and pipes")
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_becomes_a_link_or_a_pipe_is_not_read(tmp_path: Path, file: str) -> None:
    secret = write_run(tmp_path / "secret", rounds=3)
    (secret / "clients.jsonl").touch()
    run = write_run(tmp_path / "runs" / "a", rounds=2)
    shelf = shelf_of(tmp_path / "runs")
    assert selection(shelf, ["a"], tmp_path)["runs"]
    for make in (lambda path: path.symlink_to(secret / file), os.mkfifo):
        (run / file).unlink(missing_ok=True)
        make(run / file)
        told = selection(shelf, ["a"], tmp_path)
        assert told["runs"] == []
        assert f"{file} is a link or no plain file" in told["skipped"][0]["why"]


# it only reads


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in root.rglob("*"))
    return {str(one): (one.stat().st_mtime_ns, one.read_bytes() if one.is_file() else b"") for one in files}


def test_nothing_is_written_into_the_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=2)
    write_run(tmp_path / "b", rounds=2, done=False)
    write_front(tmp_path / "f", points=2, rounds=2)
    before = everything(tmp_path)
    shelf = shelf_of(tmp_path)
    selection(shelf, ["a", "b"], tmp_path)
    front(shelf, "f", tmp_path)
    clients(shelf, "a")
    shelf.folder.look()
    assert everything(tmp_path) == before


# nothing outside


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    top = tmp_path_factory.mktemp("top")
    write_run(top / "secret-run", rounds=2, name="hunter2")
    (top / "secret.txt").write_text("hunter2")
    write_run(top / "runs" / "a", rounds=2)
    write_front(top / "runs" / "f", points=1, rounds=1)
    (top / "runs" / "loose.txt").write_text("hunter2")
    with served(top / "runs") as found:
        yield found, top


@pytest.mark.parametrize("route", ["/api/runs?run=", "/api/front?front=", "/api/clients?run=", "/web/"])
def test_no_path_outside_the_folder_can_be_read(page: tuple[Served, Path], route: str) -> None:
    server, top = page
    raw = ["../secret-run", "..", "../secret.txt", "a/../../secret-run", "/etc/passwd", str(top / "secret-run")]
    raw += ["a/./..", "loose.txt", "a/experiment.toml", "a/metrics.jsonl", "a\x00", "\\..\\secret-run"]
    raw += ["....//secret-run", "%2e%2e/secret-run"]
    forms = [quote(path, safe="") for path in raw] + [quote(quote(path, safe=""), safe="") for path in raw]
    forms += ["%2e%2e%2fsecret-run", "..%5csecret-run", "%c0%ae%c0%ae/secret-run", "%00", "%ff", "..;/x", "a%0a"]
    forms += [path for path in raw if path.isprintable() and " " not in path]
    for form in forms:
        answer = server.get(f"{route}{form}")
        assert answer.status in (200, 400, 404), form
        assert b"hunter2" not in answer.body, form
        assert b"root:" not in answer.body, form
        if answer.status == 200:
            told = json.loads(answer.body)
            assert told["runs"] == [], form
            assert told["figures"] == [], form


OTHERS = (
    "/../secret.txt",
    "/web/../../secret.txt",
    "/web/%2e%2e/index.html",
    "/runs/a/metrics.jsonl",
    "//etc",
    "/web/",
)


@pytest.mark.parametrize("path", OTHERS)
def test_no_file_but_the_pages_own_is_served(page: tuple[Served, Path], path: str) -> None:
    answer = page[0].get(path)
    assert answer.status in (400, 404)


def test_what_goes_wrong_is_a_sentence_without_paths_of_the_machine(page: tuple[Served, Path]) -> None:
    server, top = page
    answer = server.get("/api/front?front=nothing")
    assert answer.status == 404
    assert json.loads(answer.body)["error"].endswith(".")
    assert str(top).encode() not in answer.body
