"""Run directories as a bad disk, a stranger or a curious person leaves them: a sentence or a run, never a traceback."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest
import torch
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save
from typer.testing import CliRunner

from fuzzing import LONGEST, SHARDS, TEXTS, VALUES, cases, only_our_errors
from polyfed.cli import app
from polyfed.core.tree import flatten
from polyfed.run.directory import RunDirectory

SMALL = ["--set", "data.examples=60", "--set", "data.clients=4", "--set", "cohort=2", "--rounds", "2"]
FILES = ["experiment.toml", "started.toml", "metrics.jsonl", "result.json", "model.safetensors", "checkpoints", ".lock"]


def polyfed(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "r"
    assert polyfed("run", *SMALL, "--out", str(path)).exit_code == 0
    return path


def ended_well(done: Result) -> None:
    """An exit code of ours, one line on stderr that is not too long."""
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in (0, 1, 2), done.stderr
    for line in done.stderr.splitlines():
        assert len(line) <= LONGEST + 20, line
        assert line.isprintable(), line


@st.composite
def damage(draw: st.DrawFn) -> tuple[str, str, int, bytes]:
    """What is done to which file, where and with which bytes."""
    kinds = ["cut", "insert", "flip", "delete", "folder", "replace", "stray", "empty"]
    file = draw(st.sampled_from(FILES))
    kind = draw(st.sampled_from(kinds if "toml" not in file else kinds[3:]))  # not a billion rounds
    more = draw(st.binary(max_size=12) | VALUES.map(lambda v: json.dumps(v, default=str).encode()))
    return file, kind, draw(st.integers(0, 3000)), more


def hurt(run: Path, file: str, kind: str, place: int, more: bytes) -> None:
    path = run / file
    if kind == "stray":
        name = more.decode("latin-1").replace("/", "").replace("\0", "")[:40]
        if (run / "checkpoints").is_dir():  # or it was hurt before
            (run / "checkpoints" / f"round-{name}.safetensors").write_bytes(more)
        return
    if path.is_dir():
        inside = sorted(path.iterdir())
        if kind in ("delete", "empty", "folder") or not inside:
            shutil.rmtree(path)
            return
        path = inside[place % len(inside)]
    data = path.read_bytes() if path.is_file() else b""
    at = place % (len(data) + 1)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind != "delete":
        flipped = bytes([data[at] ^ 4]) if at < len(data) else b""
        made = {"cut": data[:at], "insert": data[:at] + more + data[at:], "flip": data[:at] + flipped + data[at + 1 :]}
        path.write_bytes(made.get(kind, more if kind == "replace" else b""))


def fuzz_directories(whole: Path, n: int, shard: int | None = None) -> None:
    @cases(n, shard)
    @given(st.lists(damage(), min_size=1, max_size=2), st.booleans())
    def damaged(hurts: list[tuple[str, str, int, bytes]], complete: bool) -> None:
        shutil.rmtree("r", ignore_errors=True)
        shutil.copytree(whole, "r")
        if not complete:
            Path("r/result.json").unlink()
        for one in hurts:
            hurt(Path("r"), *one)
        ended_well(polyfed("resume", "r"))
        ended_well(polyfed("runs", "repair", "r"))
        ended_well(polyfed("resume", "r"))
        assert {path.name for path in Path().iterdir()} <= {"r"}

    damaged()


def test_damaged_directories(whole: Path) -> None:
    fuzz_directories(whole, 50)


@pytest.mark.soak
@pytest.mark.parametrize("shard", SHARDS)
def test_damaged_directories_for_long(whole: Path, shard: int) -> None:
    fuzz_directories(whole, 50, shard=shard)


def fuzz_checkpoints(whole: Path, n: int, shard: int | None = None) -> None:
    @cases(n, shard)
    @given(
        st.dictionaries(
            TEXTS
            | st.sampled_from(
                ["state", "state.x", "state.buffers", "clients", "folded", "layers", "callbacks", "done"]
            ),
            st.lists(st.integers(0, 5), max_size=3).map(lambda shape: torch.zeros(shape)),
            max_size=4,
        ),
        st.integers(0, 10**9),
    )
    def strange(arrays: dict[str, torch.Tensor], round: int) -> None:
        """Whole by its checksum, and not ours."""
        shutil.rmtree("r", ignore_errors=True)
        shutil.copytree(whole, "r")
        Path("r/result.json").unlink()
        try:
            data = save({name: a.numpy() for name, a in flatten(arrays).items()})
        except Exception:  # a name that safetensors does not take
            return
        (Path("r/checkpoints") / f"round-{round:08d}-{zlib.crc32(data):08x}.safetensors").write_bytes(data)
        ended_well(polyfed("resume", "r"))
        ended_well(polyfed("runs", "repair", "r"))

    strange()


def test_checkpoints_of_others(whole: Path) -> None:
    fuzz_checkpoints(whole, 40)


@pytest.mark.soak
@pytest.mark.parametrize("shard", SHARDS)
def test_checkpoints_of_others_for_long(whole: Path, shard: int) -> None:
    fuzz_checkpoints(whole, 40, shard=shard)


@cases(60)
@given(TEXTS)
def test_whatever_a_run_is_called(name: str) -> None:
    shutil.rmtree("runs", ignore_errors=True)
    with only_our_errors():
        made = RunDirectory.create(None, name, {"rounds": 1})
        assert made.path.resolve().parent == Path("runs").resolve()
    assert {path.name for path in Path().iterdir()} <= {"runs"}


@cases(15)
@given(TEXTS.filter(lambda text: "\0" not in text))
def test_whatever_path_is_asked_for(name: str) -> None:
    for command in (["resume"], ["runs", "repair"], ["run"], ["data", "show"]):
        ended_well(polyfed(*command, "--", name or " "))
        assert {path.name for path in Path().iterdir()} <= {"runs"}
        shutil.rmtree("runs", ignore_errors=True)
