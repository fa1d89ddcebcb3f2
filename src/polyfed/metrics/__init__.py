"""Figures of merit: those that compare runs and clients, and metrics of a whole split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyfed.core.errors import BadInput
from polyfed.metrics.calibration import calibration_error
from polyfed.metrics.classes import balanced_accuracy, f1
from polyfed.metrics.groups import demographic_parity_gap, equalised_odds_gap
from polyfed.metrics.ranking import auc, average_precision
from polyfed.metrics.regression import quantile, r2

Better = Literal["higher", "lower"]
__all__ = [
    "auc", "average_precision", "balanced_accuracy", "calibration_error", "delta_m", "demographic_parity_gap",
    "equalised_odds_gap", "f1", "hypervolume", "improved_share", "nrmse", "quantile", "r2", "spread", "weighted_mean",
]  # fmt: skip


def delta_m(
    values: Mapping[str, float], alone: Mapping[str, float], better: Better | Mapping[str, Better] = "lower"
) -> float:
    """Delta_M: the mean over objectives of (value - value alone) / value alone, its sign turned where more is better.

    Below 0, the run is better than training on each objective alone.

    Args:
        values: of the multi-objective run, by objective: losses, or a metric.
        alone: of training on that objective only.
        better: 'lower' (losses) or 'higher' (accuracies), for all or by objective.
    """
    if set(values) != set(alone):
        raise BadInput(f"Delta_M compares the same objectives. Found {sorted(values)} and {sorted(alone)}.")
    if zero := next((name for name in alone if not alone[name]), None):
        raise BadInput(f"Delta_M divides by the value alone, which should not be 0. Found 0 for {zero!r}.")
    sign = {name: -1.0 if (better if isinstance(better, str) else better[name]) == "higher" else 1.0 for name in values}
    return float(np.mean([sign[name] * (values[name] - alone[name]) / alone[name] for name in values]))


def improved_share(before: ArrayLike, after: ArrayLike) -> float:
    """Share of the participants whose loss did not get worse."""
    return float(np.mean(np.asarray(after) <= np.asarray(before)))


def spread(values: ArrayLike, *, high_is_bad: bool = False) -> dict[str, float]:
    """Over clients: mean, standard deviation, the worst, and the mean of the worst 5 % and 10 %."""
    v = np.sort(np.asarray(values, dtype=float))
    ranked: NDArray[np.float64] = v[::-1] if high_is_bad else v

    def worst(share: float) -> float:
        return float(ranked[: max(1, round(share * len(ranked)))].mean())

    return {
        "mean": float(v.mean()),
        "std": float(v.std()),
        "worst": float(ranked[0]),
        "worst_5": worst(0.05),
        "worst_10": worst(0.1),
    }


def weighted_mean(values: ArrayLike, weights: ArrayLike) -> float:
    """sum_i w_i v_i / sum_i w_i; NaN where all weights are 0.

    Args:
        values: one a client.
        weights: what each of them counts: its examples, or the rounds it has taken part in.
    """
    v, w = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    return float(v @ w / w.sum()) if w.any() else float("nan")


def nrmse(truth: ArrayLike, estimate: ArrayLike) -> float:
    """|truth - estimate| / |truth|, FedCMOO's measure of a Gram matrix (its Table 3)."""
    t = np.asarray(truth, dtype=float)
    return float(np.linalg.norm(t - np.asarray(estimate, dtype=float)) / np.linalg.norm(t))


def hypervolume(points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """Volume dominated by a set of loss vectors, up to a reference point (all objectives minimised)."""
    try:
        import moocore
    except ImportError as error:
        raise BadInput("Hypervolume needs the package moocore: pip install 'polyfed[front]'.") from error
    inside = np.asarray(points, dtype=float)
    if inside.ndim != 2 or inside.shape[1] != len(reference):
        raise BadInput(f"Points need one value per objective, {len(reference)}. Found shape {inside.shape}.")
    return float(moocore.hypervolume(inside, ref=np.asarray(reference, dtype=float)))
