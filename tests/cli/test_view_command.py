"""`polyfed view`: what it says, and what it refuses in a sentence."""

from __future__ import annotations

import importlib.util
import socket
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyfed.cli import app
from polyfed.view.access import Door


def view(*words: str) -> Result:
    return CliRunner().invoke(app, ["view", *words])


def test_a_folder_that_is_not_there() -> None:
    found = view("nothing")
    assert found.exit_code == 2
    assert found.stderr == "polyfed: There is no folder nothing to view. Give one that holds runs.\n"


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = view(str(tmp_path), "--port", str(taken.getsockname()[1]), "--no-open")
    assert found.exit_code == 2
    assert "Address already in use. Give another --port" in found.stderr


def test_an_address_that_is_not_this_machines(tmp_path: Path) -> None:
    found = view(str(tmp_path), "--host", "192.0.2.1", "--port", "0", "--no-open")
    assert found.exit_code == 2
    assert "cannot listen at 192.0.2.1:0" in found.stderr


def test_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, missing = importlib.util.find_spec, ("starlette", "uvicorn", "plotly")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name in missing else known(name, *more))
    found = view(str(tmp_path))
    assert found.exit_code == 2
    assert (
        found.stderr == "polyfed: polyfed view needs starlette and uvicorn and plotly: pip install 'polyfed[view]'.\n"
    )


@pytest.mark.parametrize(("display", "opened"), [(":0", True), ("", False)])
def test_a_browser_is_opened_where_there_is_a_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, display: str, opened: bool
) -> None:
    seen: list[str] = []

    class Now:
        def __init__(self, target: Any, args: Any, daemon: bool) -> None:
            self.start = lambda: target(*args)

    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("threading.Thread", Now)
    monkeypatch.setattr(webbrowser, "open", seen.append)
    monkeypatch.setattr("polyfed.view.serving.serve", lambda folder, host, port, ready: ready(Door(host, port, "abc")))
    found = view(str(tmp_path), "--host", "10.0.0.7")
    assert found.exit_code == 0
    assert f"polyfed view of {tmp_path}: http://10.0.0.7:8181/?token=abc\n" == found.stdout
    assert "nobody else can" in found.stderr
    assert seen == (["http://10.0.0.7:8181/?token=abc"] if opened else [])
    seen.clear()
    assert view(str(tmp_path), "--no-open").exit_code == 0
    assert seen == []
