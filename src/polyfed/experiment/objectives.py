"""A loss for each objective, [objectives.NAME]: in place of the data set's, for the same targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput, nearest
from polyfed.core.problem import LOSSES, Metric, Objective, nearest_accuracy
from polyfed.core.settings import Settings, check
from polyfed.data import Dataset
from polyfed.experiment.schema import ObjectiveTable

Losses = Mapping[str, str]  # by objective
CLASSES = ("cross-entropy", "cross-entropy-of-sigmoid")  # losses of class numbers


def read_losses(tables: Mapping[str, Settings]) -> Losses:
    """The losses that [objectives] names."""
    found = {}
    for name, table in tables.items():
        path = f"objectives.{name}"
        made: ObjectiveTable = check(partial(ObjectiveTable, **table), table, path, ObjectiveTable.model_fields)
        if made.loss not in LOSSES:
            raise BadInput(f"Unknown {path}.loss {made.loss!r}.{nearest(made.loss, LOSSES)}")
        found[name] = made.loss
    return found


def check_names(losses: Losses, known: Collection[str]) -> None:
    """Refuse a loss for an objective that no model has."""
    for name in losses:
        if name not in known:
            raise BadInput(f"[objectives] names {name!r}, which is no objective here.{nearest(name, known)}")


def with_losses(dataset: Dataset, losses: Losses) -> Dataset:
    """The data set with these losses for those of its objectives that are named."""
    made = (_judged(o, losses.get(o.name, o.loss), dataset.targets[o.name]) for o in dataset.objectives)
    return replace(dataset, objectives=tuple(made))


def _judged(objective: Objective, loss: Any, target: NDArray[Any]) -> Objective:
    """The objective under another loss: labels stay labels, and accuracy is what it was."""
    if loss == objective.loss:
        return objective
    if loss in CLASSES:
        _needs(objective, loss, target, "class numbers 0, 1, ...", target.ndim == 1 and _whole(target))
    if loss == "binary":
        _needs(objective, loss, target, "labels 0 and 1", bool(np.isin(target, (0, 1)).all()))
    made = Objective(objective.name, loss, objective.metrics)
    if loss == "squared" and objective.loss in CLASSES:
        return replace(made, classes=int(target.max()) + 1)
    if loss == "squared" and objective.loss == "binary" and objective.metrics is None:
        return replace(made, metrics={"accuracy": Metric(nearest_accuracy, "higher")})
    return made


def _needs(objective: Objective, loss: str, target: NDArray[Any], what: str, fits: bool) -> None:
    if not fits:
        found = f"{target.dtype} of shape {target.shape} up to {target.max()}"
        raise BadInput(f"objectives.{objective.name}.loss = {loss!r} needs {what} as targets. Found {found}.")


def _whole(target: NDArray[Any]) -> bool:
    return bool((target >= 0).all() and (target == np.floor(target)).all())
