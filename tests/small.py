"""A small problem and a small federation, for tests that need some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed import Federation, Objective, Problem, Result
from polyfed.models import Headed

GOLDEN = Path(__file__).parent / "golden"  # known inputs and outputs; its README.md says how to compare


def golden(name: str) -> Any:
    """What a golden file holds."""
    return json.loads((GOLDEN / name).read_text())


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


def vector(result: Result) -> torch.Tensor:
    """A trained model's parameters as the server sees them."""
    return torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])


class Held(nn.Linear):
    """Rows of weights no longer than 0.3, as networks for brain signals have them."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.3)
        return super().forward(x)
