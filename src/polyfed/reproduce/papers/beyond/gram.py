"""How far a compressed Gram matrix, and the direction found from it, is from the exact one, along a training run.

The run's weights are the mean's whatever the Gram matrix says, so that every compressor meets the same models and the
same batches, and a run that sends exact Jacobians tells the true matrices.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfed import FedCMOO, train
from polyfed.experiment.building import plan
from polyfed.metrics import nrmse
from polyfed.weights import Weighting, WeightingState, min_norm

Matrix = NDArray[np.float64]


class Noted(Weighting):
    """The mean's weights; every Gram matrix is noted."""

    def __init__(self) -> None:
        self.seen: list[Matrix] = []

    def __call__(self, gram: Matrix, state: WeightingState, key: int) -> tuple[Matrix, WeightingState]:
        self.seen.append(np.array(gram))
        return np.full(len(gram), 1 / len(gram)), state


def error(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """A compressor's error, the angle of its direction and its upload, as means over the rounds.

    Args:
        settings: an experiment's, and how Jacobians are compressed: `compress`, with `ways`.
        seed: of the run.
    """
    rest = {key: value for key, value in settings.items() if key not in ("compress", "ways")}
    text = json.dumps(rest, sort_keys=True)
    (true, _), (found, upload) = (
        noted(text, '"exact"', 1, seed),
        noted(text, json.dumps(settings["compress"]), settings.get("ways", 1), seed),
    )
    errors = [nrmse(a, b) for a, b in zip(true, found, strict=True)]
    angles = [angle(a, b) for a, b in zip(true, found, strict=True)]
    return {
        "values": {"error": 100 * float(np.mean(errors)), "angle": float(np.mean(angles)), "upload": upload},
        "rounds": len(true),
    }


@cache
def noted(settings: str, compress: str, ways: int, seed: int) -> tuple[list[Matrix], float]:
    """The Gram matrices of a run, and what a client sends beside its update, in models.

    Args:
        settings: an experiment's, as JSON.
        compress: as JSON, too.
        ways: 1 or 2.
        seed: of the run.
    """
    table = json.loads(settings) | {"seed": seed}
    made, _ = plan("gram", table)
    (part,) = made.parts.values()
    watched = Noted()
    own = {key: value for key, value in table["algorithm"].items() if key != "name"}
    method = FedCMOO(**own, compress=json.loads(compress), ways=2 if ways == 2 else 1, weighting=watched)
    result = train(
        part.problem, part.federation, method, rounds=table["rounds"], cohort=table["cohort"], seed=seed,
        engine="auto" if torch.cuda.is_available() else "local", evaluate={"every": table["rounds"]}, keep=False,
    )  # fmt: skip
    sent = sum(line["bytes_up"] for line in result.history) / sum(len(line["cohort"]) for line in result.history)
    return watched.seen[-table["rounds"] :], sent / (4 * part.problem.dim) - 1  # the first is of the settings' check


def angle(true: Matrix, found: Matrix) -> float:
    """Degrees between the directions that two Gram matrices lead to, as the true one has them.

    Args:
        true: the exact matrix.
        found: the estimate.
    """
    w, v = min_norm(true), min_norm(found)
    lengths = math.sqrt(max(float(w @ true @ w), 0.0) * max(float(v @ true @ v), 0.0))
    return math.degrees(math.acos(min(1.0, float(w @ true @ v) / lengths))) if lengths > 0 else 0.0
