"""A summary says which figures of histograms are in doubt."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyfed import FedAvg, Federation, Objective, Problem, train
from polyfed.metrics import auc
from polyfed.run.bounds import wide_bounds
from polyfed.run.display import _sentences


@pytest.mark.parametrize(("scale", "wide"), [(4.0, True), (1e-4, False)])
def test_an_auc_of_scores_close_together_is_said_to_be_in_doubt(scale: float, wide: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1e-4, 1e-4]]))
        model.bias.zero_()
    problem = Problem(model, [Objective("ill", "binary", metrics={"auc": auc(scale=scale)})])
    federation = Federation.from_arrays(x, {"ill": (x[:, 0] > 0).astype(np.float32)}, clients=2, test=0.5)
    summary = train(problem, federation, FedAvg(lr=1e-6), rounds=1, keep=False).summary
    said = summary.get("bounds", [])
    assert len(said) == wide
    assert all(line.startswith("auc of 'ill', 0.") and "smaller scale=" in line for line in said)
    assert _sentences(summary) == said


def test_figures_that_are_missing_or_large_are_not_in_doubt() -> None:
    line: dict[str, Any] = {
        "metrics": {"a": {"auc": None, "median": 1000.0, "ap": 0.5}},
        "bounds": {"a": {"auc": [None, None], "median": [995.0, 1005.0], "ap": [0.49, 0.51 + 1e-3]}},
    }
    (said,) = wide_bounds(line)
    assert said.startswith("ap of 'a', 0.5, lies between 0.49 and 0.511")
    line["bounds"]["a"] = {"median": [math.nan, math.nan]}
    assert wide_bounds(line) == []
