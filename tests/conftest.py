"""Shared by all tests: one torch thread, small problems, and both engines that every toy algorithm must pass on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from polyfed import Federation, Objective, Problem
from polyfed.models import Headed

torch.set_num_threads(1)

SHARED = Path(__file__).parents[1].parent / "shared"


@pytest.fixture(autouse=True)
def _away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to a fresh directory, never into the working tree."""
    monkeypatch.chdir(tmp_path)


def small_problem(seed: int = 0, objectives: int = 2, dtype: torch.dtype = torch.float32) -> Problem:
    """Two or more three-class objectives over five features."""
    torch.manual_seed(seed)
    names = ["left", "right", "middle"][:objectives]
    model = Headed(nn.Sequential(nn.Linear(5, 8), nn.Tanh()), {name: nn.Linear(8, 3) for name in names})
    return Problem(model, [Objective(name, "cross-entropy") for name in names], dtype)


def small_federation(
    seed: int = 0, clients: int = 6, rows: int = 20, holds: dict[str, list[bool]] | None = None
) -> Federation:
    rng = np.random.default_rng(seed)
    n = clients * rows
    x = rng.normal(size=(n + 30, 5)).astype(np.float32)
    targets = {name: (x @ rng.normal(size=(5, 3))).argmax(1) for name in ("left", "right", "middle")}
    return Federation.from_arrays(
        x[:n],
        {name: t[:n] for name, t in targets.items()},
        clients=clients,
        test=(x[n:], {name: t[n:] for name, t in targets.items()}),
        holds=holds,
    )


@pytest.fixture(params=["local", "wire"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shared_data() -> Path:
    path = SHARED / "data"
    if not path.is_dir():
        pytest.skip("the real data sets are not beside this checkout (../shared/data)")
    return path
