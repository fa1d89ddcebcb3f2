"""Means and spreads over seeds, and which difference is more than luck.

The test is Student's paired t-test: runs of one seed have the same data and the same start, so that differences are
taken seed by seed. Of k pairs of methods, p-values are corrected by Holm (1979): in ascending order, the i-th is
multiplied by k - i + 1, and none is below one before it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtr

TEST = "paired t-test over seeds, Holm's correction over the pairs of each figure"
ALPHA = 0.05
FEWEST = 3  # seeds: of two differences, a spread says nothing
Values = Sequence[float | None]


def spread(values: Values) -> dict[str, Any]:
    """Mean and standard deviation (of a sample) of the values that are there, and all of them."""
    there = [value for value in values if value is not None]
    mean = float(np.mean(there)) if there else None
    std = float(np.std(there, ddof=1)) if len(there) > 1 else None
    return {"mean": mean, "std": std, "values": list(values)}


def paired_t(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p-value that a - b has mean 0.

    Args:
        a: values, one a seed.
        b: those of the same seeds.
    """
    d = np.subtract(a, b)
    mean, error = float(d.mean()), float(d.std(ddof=1)) / math.sqrt(len(d))
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(len(d) - 1, -abs(mean / error)))


def holm(p: Sequence[float]) -> list[float]:
    """P-values of several tests, corrected so that all that are below a level hold at that level together."""
    corrected = [0.0] * len(p)
    highest = 0.0
    for place, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(p) - place) * p[i]))
        corrected[i] = highest
    return corrected


def compare_pairs(rows: Mapping[str, Values], better: str) -> list[dict[str, Any]]:
    """Every pair of rows by one figure: who has the better mean, by how much, and the corrected p-value.

    Args:
        rows: by name, values of the same seeds in the same order; rows that lack one are left out.
        better: 'higher' or 'lower'.
    """
    whole: dict[str, list[float]] = {}
    for name, values in rows.items():
        there = [value for value in values if value is not None]
        if len(there) == len(values) >= FEWEST:
            whole[name] = there
    pairs = list(itertools.combinations(whole, 2))
    corrected = holm([paired_t(whole[a], whole[b]) for a, b in pairs])
    found = []
    for (a, b), p in zip(pairs, corrected, strict=True):
        difference = float(np.mean(whole[a]) - np.mean(whole[b]))
        first = difference >= 0 if better == "higher" else difference <= 0
        winner, loser = (a, b) if first else (b, a)
        found.append({"better": winner, "worse": loser, "difference": abs(difference), "p": p, "holds": p < ALPHA})
    return found
