"""A small problem, a small federation, and a door to its clients on any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.core.clock import Clock
from polyfed.core.door import Door, PartView
from polyfed.core.engine import Engine, engines
from polyfed.core.federation import Federation, Rows
from polyfed.core.fleet import Metered
from polyfed.core.layer import Layer, Layers
from polyfed.core.part import Part
from polyfed.core.problem import Objective, Problem
from polyfed.metrics import auc, calibration_error


class _TwoHeads(nn.Module):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
        self.heads = nn.ModuleDict({name: nn.Linear(8, 3) for name in names})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        shared = self.body(x)
        return {name: head(shared) for name, head in self.heads.items()}


def small_problem(names: Sequence[str] = ("left", "right"), dtype: torch.dtype = torch.float64) -> Problem:
    """Three-class objectives over five features, with a shared body and a head each; the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _TwoHeads(names)
    return Problem(model, [Objective(name, "cross-entropy") for name in names], dtype)


def small_federation(
    names: Sequence[str] = ("left", "right"), sizes: Sequence[int] = (20, 7, 12, 31, 16, 9), partial: bool = True
) -> Federation:
    """Clients of different sizes. partial: whether the third one lacks the first objective."""
    rng = np.random.default_rng(0)
    n = sum(sizes)
    x = rng.normal(size=(n, 5))
    targets = {name: torch.from_numpy((x @ rng.normal(size=(5, 3))).argmax(1)) for name in names}
    length = np.array(sizes, dtype=np.int64)
    rows = Rows(np.arange(n), np.cumsum(length) - length, length)
    holds = {names[0]: np.arange(len(sizes)) != 2} if partial else {}
    return Federation(torch.from_numpy(x), targets, rows, holds=holds)


def small_task_part(sizes: Sequence[int] = (20, 7, 12, 31, 16, 9)) -> Part:
    """One linear task a client, labels 0 and 1."""
    rng = np.random.default_rng(1)
    n = sum(sizes)
    x = torch.from_numpy(rng.normal(size=(n, 4)))
    y = (x @ torch.from_numpy(rng.normal(size=4)) > 0).long()
    length = np.array(sizes, dtype=np.int64)
    federation = Federation(x, {"y": y}, Rows(np.arange(n), np.cumsum(length) - length, length))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        objective = Objective("y", "binary", {"auc": auc(bins=16), "calibration": calibration_error(bins=4)})
        return Part(Problem(nn.Linear(4, 1), [objective], torch.float64), federation)


def open_door(
    problem: Problem,
    federation: Federation,
    engine: str | Engine = "local",
    *,
    layers: Sequence[Layer] = (),
    seed: int = 0,
    cohort: int | None = None,
    rounds: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Door:
    """What an algorithm would call `fleet`, over an engine that is started here or given.

    Args:
        problem: the model and its objectives.
        federation: the clients' data.
        engine: its name, or one that has these as its only part.
        layers: the layers, in their order; a given engine has its own.
        seed: of all draws.
        cohort: clients a round; all of them if not given.
        rounds: how many rounds the method is told there will be.
        settings: the engine's.
    """
    listed = Layers(tuple(layers))
    part = {"": Part(problem, federation)}
    made = engines[engine](part, listed, **(settings or {})) if isinstance(engine, str) else engine
    view = PartView(Metered(made), "", made.population[""], Clock(seed, made.layers))
    size = len(federation) if cohort is None else cohort
    return Door(made.layers.fleet(view), problem, cohort=size, rounds=rounds)
