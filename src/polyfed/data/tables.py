"""What the tables of numbers have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def standard(columns: NDArray[Any], train: int | None = None) -> NDArray[np.float32]:
    """Each column with mean 0 and variance 1 over the first `train` rows (all, if not given); a constant one is 0."""
    values = columns.astype(np.float64)
    mean, spread = values[:train].mean(0), values[:train].std(0)
    constant = spread <= 1e-12 * np.abs(values[:train]).max(0)
    scaled: NDArray[np.float32] = ((values - mean) / np.where(constant, 1, spread)).astype(np.float32)
    return scaled
