"""Federated learning with many objectives, many models and many tasks.

Names are imported when they are first used, so that `import polyfed` and the command line's help cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfed.algorithms.fedavg import FedAvg as FedAvg
    from polyfed.algorithms.fedavg import FedProx as FedProx
    from polyfed.algorithms.multimodel import MultiModel as MultiModel
    from polyfed.api import train as train
    from polyfed.client import Wrappers as Wrappers
    from polyfed.federation import Federation as Federation
    from polyfed.federation import Rows as Rows
    from polyfed.many.api import train_many as train_many
    from polyfed.problem import Objective as Objective
    from polyfed.problem import Problem as Problem
    from polyfed.run import Result as Result

__version__ = "0.1.0"

_HOME = {
    "FedAvg": "algorithms.fedavg",
    "FedProx": "algorithms.fedavg",
    "Federation": "federation",
    "MultiModel": "algorithms.multimodel",
    "Objective": "problem",
    "Problem": "problem",
    "Result": "run",
    "Rows": "federation",
    "Wrappers": "client",
    "train": "api",
    "train_many": "many.api",
}

__all__ = [
    "FedAvg", "FedProx", "Federation", "MultiModel", "Objective", "Problem", "Result", "Rows", "Wrappers", "train",
    "train_many",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'polyfed' has no attribute {name!r}")
    return getattr(importlib.import_module(f"polyfed.{_HOME[name]}"), name)
