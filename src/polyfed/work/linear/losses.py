"""The losses of MOCHA's tasks, their conjugates, and their derivatives.

A dual variable is kept as beta = alpha / c, where c scales the loss (1, or 1 / n_t): then c l has the conjugate
(c l)*(-alpha) = c l*(-beta), and the updates do not depend on c but through q (see `kernels`). b = y beta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlogy

from polyfed.core.errors import BadInput, nearest

Floats = NDArray[np.float64]
PerExample = Callable[[Floats, Floats, float], Floats]


@dataclass(frozen=True)
class Loss:
    """l(z, y), l*(-beta) and dl/dz, each (z or beta, y, smoothing) -> one value per example.

    code is the loss's number in the compiled loop; labels says whether y is -1 or 1 (a class) or any number.
    """

    code: int
    labels: bool
    value: PerExample
    conjugate: PerExample
    slope: PerExample


def _hinge(z: Floats, y: Floats, g: float) -> Floats:
    return np.maximum(0.0, 1.0 - y * z)


def _smoothed(z: Floats, y: Floats, g: float) -> Floats:
    """0 above margin 1, 1 - yz - g/2 below margin 1 - g, (1 - yz)^2 / 2g in between."""
    short = np.maximum(0.0, 1.0 - y * z)
    middle: Floats = np.where(short > g, short - g / 2, short**2 / (2 * g))
    return middle


def _entropy(beta: Floats, y: Floats, g: float) -> Floats:
    b = y * beta
    h: Floats = xlogy(b, b) + xlogy(1 - b, 1 - b)
    return h


LOSSES: dict[str, Loss] = {
    "hinge": Loss(0, True, _hinge, lambda beta, y, g: -y * beta, lambda z, y, g: np.where(y * z < 1, -y, 0.0)),
    "smoothed-hinge": Loss(
        1, True, _smoothed,
        lambda beta, y, g: -y * beta + g * beta**2 / 2,
        lambda z, y, g: -y * np.clip((1 - y * z) / g, 0.0, 1.0),
    ),
    "squared": Loss(
        2, False,
        lambda z, y, g: (z - y) ** 2 / 2,
        lambda beta, y, g: -beta * y + beta**2 / 2,
        lambda z, y, g: z - y,
    ),
    "logistic": Loss(
        3, True,
        lambda z, y, g: np.logaddexp(0.0, -y * z),
        _entropy,
        lambda z, y, g: -y * expit(-y * z),
    ),
}  # fmt: skip


def find(name: str) -> Loss:
    """A loss by its name."""
    if name not in LOSSES:
        raise BadInput(f"Unknown loss {name!r}.{nearest(name, LOSSES)}")
    return LOSSES[name]
