"""What metrics of classes read from a model's outputs, and the bins that scores are counted in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput

FAR = 1e30  # what infinite scores count as, so that the map below has a value for them


def log_odds(output: Tensor, mask: Tensor, classes: int) -> Tensor:
    """Scores, one row per example: of two classes (n, 1), of more (n, classes), each the class's log-odds.

    Args:
        output: one logit per example, or one per class.
        mask: one entry per example.
        classes: how many there are.
    """
    n, each = len(mask), output.numel() // max(len(mask), 1)
    if each not in ((1, 2) if classes == 2 else (classes,)):
        wanted = "one logit, or two," if classes == 2 else f"{classes} logits"
        raise BadInput(f"A metric of {classes} classes needs {wanted} an example. Found outputs {tuple(output.shape)}.")
    z = output.reshape(n, each)
    if each == 1:
        return z
    if each == 2:
        return z[:, 1:] - z[:, :1]
    top, largest = z.max(1, keepdim=True)
    e = (z - top).exp()
    others = e.scatter(1, largest, 0.0).sum(1, keepdim=True)  # than the largest: no difference of nearly equal numbers
    is_largest = torch.arange(each, device=z.device) == largest
    return z - top - torch.where(is_largest, others, others + 1 - e).log()


def is_class(target: Tensor, mask: Tensor, classes: int) -> Tensor:
    """Whether each example is of each class: of two classes (n, 1), whether of class 1."""
    y = target.reshape(len(mask), 1)
    return y > 0.5 if classes == 2 else y == torch.arange(classes, device=y.device)


def predicted(output: Tensor, mask: Tensor, classes: int, threshold: float) -> Tensor:
    """The class that each example is taken for (n,): of two, 1 where the logit is above the threshold."""
    z = log_odds(output, mask, classes)
    return (z[:, 0] > threshold).long() if classes == 2 else output.reshape(len(mask), classes).argmax(1)


@dataclass(frozen=True)
class Bins:
    """A fixed map from numbers to bins: z goes to the bin of z / (scale + |z|), of which all are equally wide.

    Half of the bins lie within +-scale, and no number is too large.

    Args:
        number: how many there are.
        scale: where half of them end.
        signed: whether numbers may be negative.
    """

    number: int
    scale: float
    signed: bool = True

    def __post_init__(self) -> None:
        if type(self.number) is not int or self.number < 2:
            raise BadInput(f"bins should be a whole number from 2. Found {self.number!r}.")
        if not self.scale > 0:
            raise BadInput(f"scale should be above 0. Found {self.scale!r}.")

    def place(self, z: Tensor) -> Tensor:
        """The bin of each number; what is not a number is taken for 0."""
        z = z.double().nan_to_num(nan=0.0, posinf=FAR, neginf=-FAR)
        u = z / (self.scale + z.abs())
        share = (u + 1) / 2 if self.signed else u
        return (share * self.number).long().clamp(0, self.number - 1)

    def edge(self, place: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """The number at which a bin begins; of a fraction, a number inside it."""
        share = np.asarray(place, dtype=float) / self.number
        u = 2 * share - 1 if self.signed else share
        with np.errstate(divide="ignore"):
            return np.asarray(self.scale * u / (1 - np.abs(u)))


def tally(place: Tensor, weight: Tensor, places: int) -> Tensor:
    """The weight that falls on each of so many places."""
    start = torch.zeros(places, dtype=weight.dtype, device=weight.device)
    return start.scatter_add(0, place.reshape(-1), weight.reshape(-1))
