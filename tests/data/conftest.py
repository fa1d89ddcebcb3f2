"""The whole real data sets, where POLYFED_DATA names their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

GIVEN = os.environ.get("POLYFED_DATA")
FOLDER = Path(GIVEN).expanduser().absolute() if GIVEN else None  # before a test goes to another directory


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


@pytest.fixture
def real(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real files as POLYFED_DATA; what one test has built the next one opens."""
    if FOLDER is None:
        pytest.skip("runs on whole real data: set POLYFED_DATA to the folder that has it")
    monkeypatch.setenv("POLYFED_DATA", str(FOLDER))
    monkeypatch.setenv("XDG_CACHE_HOME", str(built))
