"""The hypervolume that a method's models dominate, all trained within one budget: of bytes, or of simulated time.

A method that takes preferences or weights shares its budget out evenly among several runs, one for each; another one
spends all of it on one run. How many rounds that is follows from what the first two cost.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.core.settings import Settings
from polyfed.experiment.building import plan
from polyfed.metrics import hypervolume
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute
from polyfed.study.pareto import non_dominated

END = 0.05  # of the first objective at one end of the preferences, of the second at the other


def volume(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """What a method's models come to.

    Args:
        settings: an experiment's, and beside it `budget` (`bytes` or `seconds`, how many), `points` (how many runs),
            `by` (the algorithm's key that a run's preference goes to, '' for none), `names` (of the two objectives) and
            `reference` (the loss of each up to which volumes are measured).
        seed: of the runs.
    """
    own = ("budget", "points", "by", "names", "reference")
    table = {key: value for key, value in settings.items() if key not in own} | {"seed": seed}
    points = int(settings["points"]) if settings["by"] else 1
    rounds = affordable(table, settings["budget"], points)
    asked = [_asking(table, settings["by"], settings["names"], share) for share in shares(points)]
    found = [losses({**one, "rounds": rounds}) for one in asked]
    reference = [float(settings["reference"])] * len(found[0])
    whole = math.prod(reference)
    kept = np.array([one for one in found if all(math.isfinite(x) for x in one)])
    share = 100 * hypervolume(kept.tolist(), reference) / whole if len(kept) else 0.0
    best = int(non_dominated(kept).sum()) if len(kept) else 0
    return {"values": {"volume": share, "front": best, "each": rounds}, "rounds": rounds}


def shares(points: int) -> list[float]:
    """How much the first of two objectives counts in each run.

    Args:
        points: how many runs.
    """
    if points == 1:
        return [0.5]
    return [END + (1 - 2 * END) * k / (points - 1) for k in range(points)]


def affordable(table: Settings, budget: dict[str, float], points: int) -> int:
    """Rounds of each run, so that all of them stay within the budget.

    Args:
        table: the experiment.
        budget: how many bytes, or simulated seconds.
        points: runs that share it.
    """
    trial = 2
    lines = history({**table, "rounds": trial, "evaluate": {"every": trial}})
    ((kind, limit),) = budget.items()
    keys = ("bytes_up", "bytes_down") if kind == "bytes" else ("simulated_seconds",)
    cost = sum(float(line[key]) for line in lines for key in keys) / trial
    return max(1, int(limit / points / cost))


def losses(table: Settings) -> list[float]:
    """Every objective's loss at the end of a run, on the test data.

    Args:
        table: the experiment.
    """
    lines = history({**table, "evaluate": {"every": table["rounds"]}})
    return [float("nan") if loss is None else float(loss) for loss in lines[-1]["losses"].values()]


def history(table: Settings) -> list[dict[str, Any]]:
    """A run's metrics, in a folder that does not stay.

    Args:
        table: the experiment.
    """
    made, _ = plan("hypervolume", table)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run", "hypervolume", {})
        execute(made, directory)
        return directory.history()


def _asking(table: Settings, by: str, names: list[str], share: float) -> Settings:
    """The experiment with a preference, or weights, by objective."""
    pair = dict(zip(names, (share, 1 - share), strict=True))
    return {**table, "algorithm": {**table["algorithm"], by: pair}} if by else table
