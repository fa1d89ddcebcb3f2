"""The list as it changes: one look for all pages, none for nobody, only what is new, and a server that can stop."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from polyfed.view.following import LISTENERS, Listener, Watcher
from polyfed.view.listing import Change, Folder
from rundirs import add_round, write_run
from served import served


@contextmanager
def listening(port: int) -> Iterator[http.client.HTTPResponse]:
    """A page that listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/api/events")
    with connection.getresponse() as answer:
        yield answer
    connection.close()


def heard(answer: http.client.HTTPResponse) -> dict[str, Any]:
    """The next event."""
    while not (line := answer.readline()).startswith(b"data: "):
        assert line, "the server ended the stream"
    return dict(json.loads(line[6:]))


def test_everything_first_then_only_what_changes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=2, done=False)
    write_run(tmp_path / "b", rounds=2)
    with served(tmp_path, every=0.05) as server, listening(server.port) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        first = heard(answer)
        assert (first["whole"], sorted(row["id"] for row in first["rows"])) == (True, ["a", "b"])
        add_round(run, 3)
        change = heard(answer)
        assert [(row["id"], row["round"]) for row in change["rows"]] == [("a", 3)]
        assert "whole" not in change
        write_run(tmp_path / "c", rounds=1)
        seen = heard(answer)
        while not any(row["id"] == "c" and row["state"] == "done" for row in seen["rows"]):
            seen = heard(answer)


def test_one_look_for_all_and_none_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a", rounds=1)
    looks: list[float] = []
    look = Folder.look

    def counted(self: Folder) -> Change:
        looks.append(time.monotonic())
        return look(self)

    monkeypatch.setattr(Folder, "look", counted)
    with served(tmp_path, every=0.1) as server:
        with listening(server.port) as one, listening(server.port) as two, listening(server.port) as three:
            for answer in (one, two, three):
                heard(answer)
            looks.clear()
            time.sleep(1.05)
            assert 2 <= len(looks) <= 12  # three pages that looked for themselves would make thirty
        time.sleep(0.4)  # until the server has seen that they went
        deadline = time.monotonic() + 20
        while server.view.watcher.watching and time.monotonic() < deadline:
            time.sleep(0.1)
        looks.clear()
        time.sleep(0.5)
        assert looks == []


def test_a_slow_page_gets_the_newest_of_each_run(tmp_path: Path) -> None:
    async def slow() -> None:
        listener = Listener(Change([{"id": "a", "round": 1}, {"id": "b", "round": 1}]))
        listener.tell(Change([{"id": "a", "round": 2}]))
        listener.tell(Change([{"id": "a", "round": 3}], gone=["b"]))
        change = await listener.next(1)
        assert change == Change([{"id": "a", "round": 3}], gone=["b"])
        assert await listener.next(0.01) is None

    asyncio.run(slow())


def test_pages_are_counted(tmp_path: Path) -> None:
    async def many() -> None:
        watcher = Watcher(Folder(tmp_path))
        async with AsyncExitStack() as stack:
            for _ in range(LISTENERS):
                assert not watcher.full
                await stack.enter_async_context(watcher.listening())
            assert watcher.full
        assert not watcher.full
        assert not watcher.watching

    asyncio.run(many())


def test_pages_that_wait_for_the_first_look_are_counted_too(tmp_path: Path) -> None:
    async def many() -> None:
        watcher = Watcher(Folder(tmp_path))
        async with AsyncExitStack() as stack:
            waiting = [asyncio.create_task(stack.enter_async_context(watcher.listening())) for _ in range(LISTENERS)]
            await asyncio.sleep(0)  # all of them have begun, and none has seen the folder
            assert watcher.full
            await asyncio.gather(*waiting)
            assert watcher.full
        assert not watcher.full

    asyncio.run(many())


def test_the_command_serves_says_where_and_stops_at_ctrl_c_with_a_page_open(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", rounds=1)
    command = [sys.executable, "-m", "polyfed", "view", "runs", "--port", "0", "--no-open"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        port = int(said.rsplit(":", 1)[1].strip("/\n"))
        with listening(port) as answer:
            assert heard(answer)["folder"] == "runs"
            process.send_signal(signal.SIGINT if os.name != "nt" else signal.SIGTERM)
            began = time.monotonic()
            _, errors = process.communicate(timeout=20)
        assert time.monotonic() - began < 4
        assert errors == "Ctrl-C ends it; runs go on.\n"
    finally:
        process.kill()
        process.communicate()
