"""The gain of training M models together, M T_1 / T_M, by `polyfed.experiment.gain`."""

from __future__ import annotations

from typing import Any

from polyfed.experiment.gain import measure


def gain(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """The gain for one schedule, M, E and seed.

    Args:
        settings: schedule, models, E (local steps) and target (log10 of the gap).
        seed: of the runs.
    """
    experiment: dict[str, Any] = {
        "rounds": 20_000, "seed": seed, "cohort": "all", "guard": "off",
        "data": {"name": "tridiagonal", "users": 24, "p": 4, "mu": 2e-4, "partition": "natural"},
        "model": {"name": "point", "dtype": "float64"},
        "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": settings["E"], "batch_size": 0},
    }  # fmt: skip
    found = measure(
        experiment, [settings["models"]], schedules=[settings["schedule"]], metric="gap", target=settings["target"]
    )
    (row,) = found["rows"]
    return {"values": {"gain": row["gain"][0]}, "rounds": row["T_M"][0]}
