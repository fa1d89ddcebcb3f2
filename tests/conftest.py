"""Shared by all tests: one torch thread, a fresh directory, and both engines that every toy algorithm must pass on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from small import SHARED

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported: its kernels are run by Python


@pytest.fixture(autouse=True)
def _away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to a fresh directory, never into the working tree."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["local", "wire"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shared_data() -> Path:
    path = SHARED / "data"
    if not path.is_dir():
        pytest.skip("the real data sets are not beside this checkout (../shared/data)")
    return path
