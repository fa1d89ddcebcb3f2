"""Federated learning with many objectives, many models and many tasks.

Names are imported when they are first used, so that `import polyfed` and the command line's help cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfed.algorithms.models.multimodel import MultiModel as MultiModel
    from polyfed.algorithms.objectives.fedavg import FedAvg as FedAvg
    from polyfed.algorithms.objectives.fedavg import FedProx as FedProx
    from polyfed.core.client import Wrappers as Wrappers
    from polyfed.core.federation import Federation as Federation
    from polyfed.core.federation import Rows as Rows
    from polyfed.core.problem import Objective as Objective
    from polyfed.core.problem import Problem as Problem
    from polyfed.experiment.api import train as train
    from polyfed.experiment.api_many import train_many as train_many
    from polyfed.run.loop import Result as Result

__version__ = "0.1.0"

_HOME = {
    "FedAvg": "algorithms.objectives.fedavg",
    "FedProx": "algorithms.objectives.fedavg",
    "Federation": "core.federation",
    "MultiModel": "algorithms.models.multimodel",
    "Objective": "core.problem",
    "Problem": "core.problem",
    "Result": "run.loop",
    "Rows": "core.federation",
    "Wrappers": "core.client",
    "train": "experiment.api",
    "train_many": "experiment.api_many",
}

__all__ = [
    "FedAvg", "FedProx", "Federation", "MultiModel", "Objective", "Problem", "Result", "Rows", "Wrappers", "train",
    "train_many",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'polyfed' has no attribute {name!r}")
    return getattr(importlib.import_module(f"polyfed.{_HOME[name]}"), name)
