"""Made-up classification tasks in groups: small, embedded, and with a known structure for MOCHA to find."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from polyfed.core.keys import generator
from polyfed.core.problem import Objective
from polyfed.core.room import check_room
from polyfed.data import Dataset, datasets

Whole = Annotated[int, Field(ge=1)]


@datasets("related-tasks")
def related_tasks(
    *,
    seed: int = 0,
    tasks: Whole = 24,
    rows: Whole = 60,
    features: Whole = 30,
    clusters: Whole = 3,
    spread: Annotated[float, Field(ge=0)] = 0.3,
    flipped: Annotated[float, Field(ge=0, lt=0.5)] = 0.05,
) -> Dataset:
    """Linear tasks in groups: task t's w is its group's centre plus spread; objective 'label'; key 'task'.

    y is the sign of w^T x, x standard normal; a part of the labels is flipped. Tasks t, t + clusters, ... are a group.

    Args:
        tasks: how many there are.
        rows: examples of each task.
        features: numbers that describe an example.
        clusters: how many groups the tasks form.
        spread: the standard deviation of w around its group's centre, whose own is 1; 0 for one w a group.
        flipped: the part of the labels that is wrong.
    """
    sizes = "data.tasks, data.rows, data.features and data.clusters"
    check_room(3 * (tasks * rows + tasks + clusters) * (features + 1), sizes)
    rng = generator(seed, "related-tasks")
    owner = np.repeat(np.arange(tasks), rows)
    centres = rng.normal(size=(clusters, features))
    W = centres[np.arange(tasks) % clusters] + spread * rng.normal(size=(tasks, features))
    x = rng.normal(size=(len(owner), features))
    y = (np.einsum("ij,ij->i", x, W[owner]) > 0) ^ (rng.random(len(owner)) < flipped)
    label = y.astype(np.int64)
    objective = Objective("label", "binary")
    return Dataset(x.astype(np.float32), {"label": label}, (objective,), labels=label, keys={"task": owner})
