"""From a Gram matrix to weights: pure functions, and the registry behind `weighting = "..."`."""

from __future__ import annotations

from polyfed.weights.gram import extend, frank_wolfe_gap, psd, restrict
from polyfed.weights.min_norm import min_norm
from polyfed.weights.pgd import pgd
from polyfed.weights.simplex import project_simplex
from polyfed.weights.weighting import State, Weighting, weigh, weightings

__all__ = [
    "State",
    "Weighting",
    "extend",
    "frank_wolfe_gap",
    "min_norm",
    "pgd",
    "project_simplex",
    "psd",
    "restrict",
    "weigh",
    "weightings",
]
