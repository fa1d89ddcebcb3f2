"""The probability simplex."""

from __future__ import annotations

import numpy as np

from polyfed.core.errors import BadInput
from polyfed.weights.gram import Array, Numbers, as_array


def project_simplex(v: Numbers) -> Array:
    """The nearest point of the simplex, exactly.

    `argmin_w ||w - v||^2` over `w >= 0, sum w = 1`, which is `max(v - theta, 0)`: theta is the largest
    `(v_(1) + ... + v_(j) - 1) / j`, v sorted downwards.

    Duchi, Shalev-Shwartz, Singer and Chandra (2008), Figure 1; they search for the last j with a positive entry, where
    theta is the same.
    """
    values = as_array(v)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise BadInput(f"Only a vector of finite numbers has a projection on the simplex. Found {values.tolist()}.")
    return project(values)


def project(values: Array) -> Array:
    """`project_simplex` of what is known to be a finite vector."""
    shifted = values - values.max()  # keeps theta small, so that huge entries do not cost digits
    sums = np.sort(shifted)[::-1].cumsum() - 1.0
    w = np.maximum(shifted - (sums / np.arange(1, len(shifted) + 1)).max(), 0.0)
    return np.asarray(w / w.sum())  # sums to one to the last bit that rounding leaves
