"""`polyfed doctor`: what it finds on this machine, and what it says of a broken one."""

from __future__ import annotations

import json
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import polyfed
from polyfed.cli import app


def asked(*arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    done = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    findings = json.loads(done.stdout)["findings"]
    return done.exit_code, {finding["what"]: (finding["state"], finding["text"]) for finding in findings}


def test_what_is_looked_at() -> None:
    code, found = asked()
    wanted = {"polyfed", "packages", "GPU", "Triton", "disk here", "rights", "data", "flower", "ray"}
    assert wanted <= set(found)
    assert code == int(any(state == "bad" for state, _ in found.values()))
    assert found["packages"][0] == "ok"
    assert polyfed.__version__ in found["polyfed"][1]
    assert not list(Path().iterdir())  # nothing is left


def test_one_screen() -> None:
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    assert 10 <= len(lines) <= 24
    assert all(line.split("  ")[0] and (" ok " in line or " note " in line or " bad " in line) for line in lines)


def test_a_package_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == "flwr":
            return "1.42.0"
        if name == "ray":
            raise metadata.PackageNotFoundError
        return "1.0" if name == "torch" else installed(name)

    monkeypatch.setattr(metadata, "version", version)
    code, found = asked()
    assert code == 1
    assert found["packages"] == ("bad", "torch 1.0 does not fit: reinstall polyfed")
    assert found["flower"] == ("bad", "flwr 1.42.0 does not fit; pip install 'polyfed[flower]'")
    assert found["ray"] == ("note", "not installed; pip install 'polyfed[ray]'")


def test_a_full_disk_and_a_folder_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    def refused(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage())
    monkeypatch.setattr("tempfile.TemporaryDirectory", refused)
    code, found = asked()
    assert code == 1
    assert (found["disk here"][0], found["rights"][0]) == ("bad", "bad")
    assert "Permission denied" in found["rights"][1]


def test_a_look_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _broken() -> Any:
        raise RuntimeError("the driver is on fire")

    monkeypatch.setattr(import_module("polyfed.cli.doctor"), "LOOKS", (_broken,))
    assert asked() == (1, {"broken": ("bad", "RuntimeError: the driver is on fire")})


def test_the_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"polyfed {polyfed.__version__}\n")
