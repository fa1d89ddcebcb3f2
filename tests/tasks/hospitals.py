"""A table as people have it: rows of some hospitals, shuffled, whose models are alike but not the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

FEATURES = ["age", "pulse", "dose", "ward"]


def hospitals(m: int = 6, n: int = 40, classes: int = 2, noise: float = 0.3, seed: int = 0) -> tuple[Any, Any]:
    """A DataFrame with the hospital in a column between the others, and a label for each row."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(classes, 4))
    which = rng.permutation(np.repeat(np.arange(m), n))
    X = rng.normal(size=(m * n, 4))
    W = common + noise * rng.normal(size=(m, classes, 4))
    y = np.einsum("nd,nkd->nk", X, W[which]).argmax(1)
    frame = pd.DataFrame(X, columns=FEATURES)
    frame.insert(2, "hospital", [f"H{t}" for t in which])
    return frame, np.array(["fine", "ill", "worse"])[y]


def as_lists(frame: Any, y: Any) -> tuple[list[Any], list[Any]]:
    """The same rows, one X and one y per hospital."""
    names = sorted(set(frame["hospital"]))
    each = [(frame["hospital"] == name).to_numpy() for name in names]
    return [frame.loc[rows, FEATURES].to_numpy() for rows in each], [y[rows] for rows in each]
