"""From a Gram matrix to weights: pure functions, and the registry behind `weighting = "..."`."""

from __future__ import annotations

from polyfed.weights.cagrad import cagrad
from polyfed.weights.dual_cone import project_dual_cone
from polyfed.weights.gram import extend, frank_wolfe_gap, psd, restrict
from polyfed.weights.min_norm import min_norm
from polyfed.weights.pgd import pgd
from polyfed.weights.preference import Preferred, preference
from polyfed.weights.proximal import proximal, still_owed
from polyfed.weights.simplex import project_simplex
from polyfed.weights.weighting import Weighting, WeightingState, weigh, weightings

__all__ = [
    "Preferred",
    "Weighting",
    "WeightingState",
    "cagrad",
    "extend",
    "frank_wolfe_gap",
    "min_norm",
    "pgd",
    "preference",
    "project_dual_cone",
    "project_simplex",
    "proximal",
    "psd",
    "restrict",
    "still_owed",
    "weigh",
    "weightings",
]
