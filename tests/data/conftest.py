"""Data files in a fresh folder, or the real ones; what is built from them never goes to the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty POLYFED_DATA."""
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


@pytest.fixture
def real(shared_data: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real files as POLYFED_DATA; what one test has built the next one opens."""
    monkeypatch.setenv("POLYFED_DATA", str(shared_data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(built))
    return shared_data
