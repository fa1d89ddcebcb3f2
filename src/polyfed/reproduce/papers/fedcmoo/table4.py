"""Delta_M from runs of all objectives together and of each alone, the mean of the last evaluations of each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from polyfed.experiment.building import plan
from polyfed.metrics import delta_m
from polyfed.reproduce.sharing import once
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute


def cost(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """What training both objectives at once costs, in percent of each objective's accuracy alone.

    Args:
        settings: the tables of an experiment; 'alone', the [algorithm] of an objective alone; 'last', how many
            evaluations are averaged.
        seed: of the runs.
    """
    experiment = {key: value for key, value in settings.items() if key not in ("alone", "last")} | {"seed": seed}
    experiment["engine"] = {"name": "auto" if torch.cuda.is_available() else "local"}
    single = experiment | {"algorithm": settings["alone"]}

    def alone_of(name: str) -> float:  # all methods are compared with the same runs
        asked = single, name, settings["last"]
        return float(once(["alone", *asked], lambda folder: _accuracies(*asked))[name])

    together = _accuracies(experiment, "", settings["last"])
    alone = {name: alone_of(name) for name in together}
    found = 100 * delta_m(together, alone, dict.fromkeys(together, "higher"))
    first, second = (100 * value for value in alone.values())
    return {"values": {"delta_m": found, "first": first, "second": second}, "rounds": experiment["rounds"]}


def _accuracies(experiment: dict[str, Any], only: str, last: int) -> dict[str, float]:
    """Each objective's accuracy, the mean of the last evaluations."""
    made, _ = plan("delta-m", experiment, only=[only] if only else None)
    with tempfile.TemporaryDirectory() as folder:
        history = execute(made, RunDirectory.create(Path(folder) / "run", "delta-m", {})).history
    lines = [line["metrics"] for line in history if "metrics" in line][-last:]
    return {name: sum(line[name]["accuracy"] for line in lines) / len(lines) for name in lines[0]}
