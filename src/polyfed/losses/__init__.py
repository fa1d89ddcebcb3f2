"""Objectives whose loss is about the whole batch: gaps between groups, contrastive learning, regularisers.

Each function makes an `Objective` whose loss knows padding and missing labels, so that it is the same on every engine.
"""

from polyfed.losses.contrastive import supervised_contrastive
from polyfed.losses.fairness import demographic_parity, equalised_odds
from polyfed.losses.regularisers import l2

__all__ = ["demographic_parity", "equalised_odds", "l2", "supervised_contrastive"]
