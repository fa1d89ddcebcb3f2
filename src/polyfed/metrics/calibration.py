"""Whether probabilities are what they say: the expected calibration error."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from polyfed.core.errors import BadInput
from polyfed.core.metric import SplitMetric, Statistics
from polyfed.metrics.ranking import check_classes
from polyfed.metrics.scores import is_class, log_odds, tally


def calibration_error(classes: int = 2, *, bins: int = 15) -> SplitMetric:
    """The expected calibration error: over bins of the probability, the mean distance of the mean probability from the
    share of examples for which it came true, each bin counting by its examples.

    Of two classes it is about the probability of class 1; of more, about the largest one (Guo et al. 2017).

    Args:
        classes: 2 for labels 0 and 1 (one logit an example, or two); more for class numbers and as many logits.
        bins: how many there are, equally wide from 0 to 1.
    """
    check_classes(classes)
    if type(bins) is not int or bins < 1:
        raise BadInput(f"calibration_error: bins should be a whole number from 1. Found {bins!r}.")
    update = partial(_sums, classes=classes, bins=bins)
    return SplitMetric(update, _error, (3, bins), "lower", classes={"target": classes})


def _sums(output: Tensor, target: Tensor, mask: Tensor, *, classes: int, bins: int) -> Tensor:
    """For each bin: how many examples, the sum of their probabilities, and for how many it came true."""
    z, y = log_odds(output, mask, classes).double(), is_class(target, mask, classes)
    at = torch.zeros_like(z[:, :1]).long() if classes == 2 else z.argmax(1, keepdim=True)
    p, true = z.gather(1, at).sigmoid()[:, 0], y.gather(1, at)[:, 0].double()
    place = (p.nan_to_num() * bins).long().clamp(0, bins - 1)
    rows = mask.double()
    return torch.stack([tally(place, torch.where(mask > 0, v, 0.0), bins) for v in (rows, p, true)])


def _error(sums: Statistics) -> float:
    n, said, true = sums
    return float(np.abs(said - true).sum() / n.sum()) if n.any() else float("nan")
