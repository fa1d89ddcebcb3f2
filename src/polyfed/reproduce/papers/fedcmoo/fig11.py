"""What a round's local training gains, of FedCMOO and FSMGDA from the same global models: those of a run of FedCMOO."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyfed.experiment.building import plan
from polyfed.reproduce.sharing import once
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute


def gained(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """The gain in loss and accuracy of one method's local training, at some rounds of FedCMOO's run.

    Args:
        settings: the tables of an experiment, [algorithm] that of the run; 'probe', the [algorithm] whose gain is
            measured; 'at', the rounds after which it is; 'clients', how many train for it.
        seed: of the runs.
    """
    own = ("probe", "at", "clients")
    experiment = {key: value for key, value in settings.items() if key not in own} | {"seed": seed}
    experiment["engine"] = {"name": "auto" if torch.cuda.is_available() else "local"}
    probe = experiment | {"rounds": 1, "cohort": settings["clients"], "algorithm": settings["probe"]}
    loss, accuracy = [], []
    asked = experiment, settings["at"]
    models = once(["models", *asked], partial(_models, *asked))  # all rows have the same
    with tempfile.TemporaryDirectory() as folder:
        for at, before in zip(settings["at"], models, strict=True):
            told = _run(probe, before, Path(folder) / f"probe-{at}", {"every": 10**6, "progress": 1})[1]["progress"]
            loss.append(sum(row["loss"] for row in told.values()) / len(told))
            accuracy.append(100 * sum(row["accuracy"] for row in told.values()) / len(told))
    x = {"round": [float(at) for at in settings["at"]]}
    values = {"loss": sum(loss) / len(loss), "accuracy": sum(accuracy) / len(accuracy)}
    curves = {"local.loss": {"x": x, "y": loss}, "local.accuracy": {"x": x, "y": accuracy}}
    return {"values": values, "curves": curves, "rounds": settings["at"][-1]}


def _models(experiment: dict[str, Any], rounds: list[int], folder: Path) -> list[str]:
    """The files of a run's models after some rounds; '' for the model that it begins with."""
    found, before, begun = [], "", 0
    for at in rounds:
        if at > begun:
            further = experiment | {"rounds": at - begun}
            before, begun = _run(further, before, folder / f"to-{at}", {"every": 10**6})[0], at
        found.append(before)
    return found


def _run(experiment: dict[str, Any], before: str, out: Path, evaluate: dict[str, int]) -> tuple[str, dict[str, Any]]:
    """Train from a model that another run left; where the new one is, and its last line of metrics."""
    model = experiment["model"] | ({"weights": before} if before else {})
    made, _ = plan("progress", experiment | {"model": model, "evaluate": evaluate})
    result = execute(made, RunDirectory.create(out, "progress", {}))
    return str(out / "model.safetensors"), result.history[-1]
