"""Federated learning with many objectives, many models and many tasks.

Names are imported when they are first used, so that `import polyfed` and the command line's help cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfed.algorithms.models.multimodel import MultiModel as MultiModel
    from polyfed.algorithms.objectives.centralised import Centralised as Centralised
    from polyfed.algorithms.objectives.fair import AFL as AFL
    from polyfed.algorithms.objectives.fair import QFedAvg as QFedAvg
    from polyfed.algorithms.objectives.fedavg import FedAvg as FedAvg
    from polyfed.algorithms.objectives.fedavg import FedAvgN as FedAvgN
    from polyfed.algorithms.objectives.fedavg import FedMGDA as FedMGDA
    from polyfed.algorithms.objectives.fedavg import FedMGDAPlus as FedMGDAPlus
    from polyfed.algorithms.objectives.fedavg import FedProx as FedProx
    from polyfed.algorithms.objectives.fedavg import MGDAProx as MGDAProx
    from polyfed.algorithms.objectives.fedcmoo import FedCMOO as FedCMOO
    from polyfed.algorithms.objectives.fedcmoo import FedCMOOPref as FedCMOOPref
    from polyfed.algorithms.objectives.fmgda import FMGDA as FMGDA
    from polyfed.algorithms.objectives.fmgda import FSMGDA as FSMGDA
    from polyfed.algorithms.server_optimizers import ServerOptimizer as ServerOptimizer
    from polyfed.algorithms.tasks.mb_sgd import MbSGD as MbSGD
    from polyfed.algorithms.tasks.mocha import CoCoA as CoCoA
    from polyfed.algorithms.tasks.mocha import GlobalModel as GlobalModel
    from polyfed.algorithms.tasks.mocha import LocalModels as LocalModels
    from polyfed.algorithms.tasks.mocha import MbSDCA as MbSDCA
    from polyfed.algorithms.tasks.mocha import Mocha as Mocha
    from polyfed.compress import Compressor as Compressor
    from polyfed.core.algorithm import Algorithm as Algorithm
    from polyfed.core.engine import Engine as Engine
    from polyfed.core.errors import BadInput as BadInput
    from polyfed.core.errors import PolyfedError as PolyfedError
    from polyfed.core.errors import RunStopped as RunStopped
    from polyfed.core.federation import Federation as Federation
    from polyfed.core.federation import Rows as Rows
    from polyfed.core.layer import Layer as Layer
    from polyfed.core.metric import SplitMetric as SplitMetric
    from polyfed.core.problem import Metric as Metric
    from polyfed.core.problem import Objective as Objective
    from polyfed.core.problem import Problem as Problem
    from polyfed.core.source import Files as Files
    from polyfed.core.source import Source as Source
    from polyfed.data import Dataset as Dataset
    from polyfed.experiment.api import train as train
    from polyfed.experiment.api import train_many as train_many
    from polyfed.experiment.loading import Loaded as Loaded
    from polyfed.experiment.loading import load as load
    from polyfed.layers.attacks import Misreport as Misreport
    from polyfed.layers.faults import Faults as Faults
    from polyfed.layers.network import Network as Network
    from polyfed.layers.quantise import Quantise as Quantise
    from polyfed.run.callbacks import Callback as Callback
    from polyfed.run.display import Progress as Progress
    from polyfed.run.loop import Result as Result
    from polyfed.study.compare import compare as compare
    from polyfed.study.comparison import Comparison as Comparison
    from polyfed.study.front import Front as Front
    from polyfed.study.tradeoff import front as front
    from polyfed.study.tune import tune as tune
    from polyfed.study.tuned import Tuned as Tuned
    from polyfed.weights import Weighting as Weighting

__version__ = "0.1.0"  # the one place: pyproject.toml reads it, a test compares CITATION.cff

_MODULES = {
    "algorithms.models.multimodel": ["MultiModel"],
    "algorithms.objectives.centralised": ["Centralised"],
    "algorithms.objectives.fair": ["AFL", "QFedAvg"],
    "algorithms.objectives.fedavg": ["FedAvg", "FedAvgN", "FedMGDA", "FedMGDAPlus", "FedProx", "MGDAProx"],
    "algorithms.objectives.fedcmoo": ["FedCMOO", "FedCMOOPref"],
    "algorithms.objectives.fmgda": ["FMGDA", "FSMGDA"],
    "algorithms.server_optimizers": ["ServerOptimizer"],
    "algorithms.tasks.mb_sgd": ["MbSGD"],
    "algorithms.tasks.mocha": ["CoCoA", "GlobalModel", "LocalModels", "MbSDCA", "Mocha"],
    "compress": ["Compressor"],
    "core.algorithm": ["Algorithm"],
    "core.engine": ["Engine"],
    "core.errors": ["BadInput", "PolyfedError", "RunStopped"],
    "core.federation": ["Federation", "Rows"],
    "core.layer": ["Layer"],
    "core.metric": ["SplitMetric"],
    "core.problem": ["Metric", "Objective", "Problem"],
    "core.source": ["Files", "Source"],
    "data": ["Dataset"],
    "experiment.api": ["train", "train_many"],
    "experiment.loading": ["Loaded", "load"],
    "layers.attacks": ["Misreport"],
    "layers.faults": ["Faults"],
    "layers.network": ["Network"],
    "layers.quantise": ["Quantise"],
    "run.callbacks": ["Callback"],
    "run.display": ["Progress"],
    "run.loop": ["Result"],
    "study.compare": ["compare"],
    "study.comparison": ["Comparison"],
    "study.front": ["Front"],
    "study.tradeoff": ["front"],
    "study.tune": ["tune"],
    "study.tuned": ["Tuned"],
    "weights": ["Weighting"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AFL", "FMGDA", "FSMGDA", "Algorithm", "BadInput", "Callback", "Centralised", "CoCoA", "Comparison",
    "Compressor", "Dataset", "Engine", "Faults", "FedAvg", "FedAvgN", "FedCMOO", "FedCMOOPref", "FedMGDA",
    "FedMGDAPlus", "FedProx", "Federation", "Files", "Front", "GlobalModel", "Layer", "Loaded", "LocalModels",
    "MGDAProx", "MbSDCA", "MbSGD", "Metric", "Misreport", "Mocha", "MultiModel", "Network", "Objective",
    "PolyfedError", "Problem", "Progress", "QFedAvg", "Quantise", "Result", "Rows", "RunStopped",
    "ServerOptimizer", "Source", "SplitMetric", "Tuned", "Weighting", "compare", "front", "load", "train",
    "train_many", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "losses", "metrics"):  # so that `polyfed.metrics.auc()` needs no import of its own
        return importlib.import_module(f"polyfed.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'polyfed' has no attribute {name!r}")
    return getattr(importlib.import_module(f"polyfed.{_HOME[name]}"), name)
