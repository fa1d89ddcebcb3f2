"""`polyfed data fetch` and `polyfed data list`, against a small server on this machine."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polyfed.cli.data import data_app
from polyfed.core.errors import BadInput, PolyfedError
from polyfed.data import datasets, store
from polyfed.data.fetch import fetch
from polyfed.data.store import File, Source

pytest.importorskip("pooch", reason="pooch is not installed (the extra 'data')")

CONTENT = np.random.default_rng(0).bytes(300_000)


class Publisher(BaseHTTPRequestHandler):
    """Sends CONTENT, from where it is asked to; /broken stops half-way, /stubborn knows no ranges."""

    asked: list[str | None]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.path != "/stubborn" else 0
        if self.path == "/gone" or start >= len(CONTENT):
            self.send_response(404 if self.path == "/gone" else 416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : start + 100_000 if self.path == "/broken" else None])

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def address(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    Publisher.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Publisher)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def toy(url: str, content: bytes = CONTENT, **more: tuple[str, ...]) -> Source:
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Source("toy", "toys", (File("toy.bin", url=url, checksum=checksum, **more),))


def left(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "toys").iterdir())


def test_a_file_is_fetched_once(place: Path, address: str) -> None:
    for _ in range(2):
        fetch(toy(f"{address}/toy"))
    assert (place / "toys" / "toy.bin").read_bytes() == CONTENT
    assert left(place) == ["toy.bin"]
    assert Publisher.asked == [None]


def test_another_checksum_is_a_sentence_and_nothing_is_left(place: Path, address: str) -> None:
    with pytest.raises(PolyfedError, match=r"gave another file than the publisher's \(its checksum differs\)"):
        fetch(toy(f"{address}/toy", b"something else"))
    assert left(place) == []


def test_a_broken_download_goes_on_where_it_stopped(place: Path, address: str) -> None:
    with pytest.raises(PolyfedError, match=r"/broken could not be downloaded .*: it goes on where it stopped"):
        fetch(toy(f"{address}/broken"))
    assert left(place) == ["toy.bin.part"]
    have = (place / "toys" / "toy.bin.part").stat().st_size
    assert 0 < have <= 100_000
    fetch(toy(f"{address}/toy"))
    assert Publisher.asked == [None, f"bytes={have}-"]
    assert (place / "toys" / "toy.bin").read_bytes() == CONTENT
    assert left(place) == ["toy.bin"]


@pytest.mark.parametrize(("path", "size"), [("stubborn", 1000), ("toy", 400_000)])
def test_what_cannot_be_resumed_is_fetched_from_the_start(place: Path, address: str, path: str, size: int) -> None:
    """A server that knows no ranges; a part that is longer than the whole."""
    (place / "toys").mkdir(parents=True)
    (place / "toys" / "toy.bin.part").write_bytes(bytes(size))
    fetch(toy(f"{address}/{path}"))
    assert (place / "toys" / "toy.bin").read_bytes() == CONTENT
    assert left(place) == ["toy.bin"]


def test_a_file_in_another_form_is_enough_and_a_lesser_one_is_not(place: Path, address: str) -> None:
    (place / "toys").mkdir(parents=True)
    (place / "toys" / "toy.npz").touch()
    fetch(toy(f"{address}/toy", other=("toy.npz",)))
    assert left(place) == ["toy.npz"]
    fetch(toy(f"{address}/toy", lesser=("toy.npz",)))
    assert left(place) == ["toy.bin", "toy.npz"]


def test_what_cannot_be_fetched_is_a_sentence(place: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolyfedError, match=r"/gone could not be downloaded \(HTTPError\)"):
        fetch(toy(f"{address}/gone"))
    with pytest.raises(BadInput, match=r"'toy' has no address to download it from: get toy.bin and put it in .*toys"):
        fetch(Source("toy", "toys", (File("toy.bin"),), "get toy.bin and put it"))
    monkeypatch.setenv("POLYFED_DATA", __file__)
    with pytest.raises(BadInput, match=r"cannot be written .*; set POLYFED_DATA to a folder that can be"):
        fetch(toy(f"{address}/toy"))
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(BadInput, match=r"needs pooch: pip install 'polyfed\[data\]'"):
        fetch(toy(f"{address}/toy"))


def run(*words: str) -> str:
    result = CliRunner().invoke(data_app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_commands(place: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "vehicle" in datasets
    monkeypatch.setitem(store.needs, "vehicle", (toy(f"{address}/toy", lesser=("less.bin",)),))

    def state() -> dict[str, Any]:
        return {row["name"]: row for row in json.loads(run("list", "--json"))["datasets"]}

    assert set(state()) == set(datasets)
    assert state()["vehicle"]["status"] == state()["celeba"]["status"] == "missing"
    assert state()["celeba"]["where"] == "'polyfed data fetch' says how"
    assert state()["synthetic"] == {"name": "synthetic", "status": "built in", "bytes": 0, "where": ""}
    (place / "toys").mkdir(parents=True)
    (place / "toys" / "less.bin").touch()
    assert state()["vehicle"]["status"] == "in part"
    assert run("fetch", "vehicle") == f"vehicle is there: {place / 'toys' / 'toy.bin'}\n"
    assert state()["vehicle"] == json.loads(run("fetch", "vehicle", "--json"))
    assert state()["vehicle"]["bytes"] == len(CONTENT)
    table = [line.split() for line in run("list").splitlines()]
    assert table[0] == ["name", "status", "size", "where"]
    assert ["vehicle", "there", "300.0", "kB", str(place / "toys" / "toy.bin")] in table


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("celeba", "polyfed: 'celeba' has no address"),
        ("mnits", "polyfed: Unknown dataset 'mnits'. Did you mean 'mnist'?"),
    ],
)
def test_the_commands_say_what_is_wrong(place: Path, name: str, sentence: str) -> None:
    result = CliRunner().invoke(data_app, ["fetch", name])
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1


def test_every_address_has_a_checksum() -> None:
    assert "mnist" in datasets
    for source in {source for sources in store.needs.values() for source in sources}:
        assert source.fetchable != bool(source.how), "either we fetch it or we say how"
        for file in source.files:
            assert bool(file.url) == file.checksum.startswith("sha256:")
