"""The trainable parameters of a network, as it is built for data of a shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.models import models


def parameters(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """How many a network has; the seed changes none.

    Args:
        settings: model, shape of an example, and classes.
        seed: of the cell.
    """
    classes = settings["classes"]
    labels = np.arange(classes)
    data = Dataset(
        np.zeros((classes, *settings["shape"]), np.float32),
        {"class": labels},
        (Objective("class", "cross-entropy"),),
        classes,
        labels=labels,
    )
    network = models[settings["model"]](data)
    return {"values": {"parameters": sum(p.numel() for p in network.parameters() if p.requires_grad)}}
