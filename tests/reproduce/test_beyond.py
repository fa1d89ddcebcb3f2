"""The drivers of 'Beyond the papers': Gram matrices against exact ones, and volumes under a budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from polyfed.reproduce.papers.beyond.gram import angle, error
from polyfed.reproduce.papers.beyond.hypervolume import affordable, shares, volume

DIGITS: dict[str, Any] = {
    "rounds": 2, "cohort": 2,
    "data": {"name": "two-digits", "clients": 4, "examples": 80},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedcmoo", "lr": 0.1, "local_steps": 2, "batch_size": 8},
}  # fmt: skip
POINT: dict[str, Any] = {
    "points": 3, "reference": 1.0, "names": ["f1", "f2"], "cohort": "all",
    "data": {"name": "vlmop1", "examples": 4, "clients": 2}, "model": {"name": "point"},
}  # fmt: skip


def test_exact_jacobians_have_no_error_and_a_sketch_has_some_for_less() -> None:
    exact = error({**DIGITS, "compress": "exact"}, 0)["values"]
    sketch = error({**DIGITS, "compress": {"name": "sketch", "width": 16}}, 0)["values"]
    two_ways = error({**DIGITS, "compress": {"name": "top-k", "budget": 1.0}, "ways": 2}, 0)["values"]
    one_way = error({**DIGITS, "compress": {"name": "top-k", "budget": 1.0}}, 0)["values"]
    assert exact["error"] == 0
    assert exact["angle"] == pytest.approx(0, abs=1e-4)
    assert exact["upload"] > sketch["upload"] > 0
    assert sketch["error"] > 0
    assert two_ways["error"] < one_way["error"]


def test_an_angle_is_between_the_directions_of_the_weights() -> None:
    true = np.diag([1.0, 3.0])  # min-norm weights 3/4 and 1/4
    assert angle(true, true) == pytest.approx(0, abs=1e-6)
    found = np.diag([1.0, 1e9])  # as good as all weight on the first
    assert angle(true, found) == pytest.approx(math.degrees(math.acos(0.75 / math.sqrt(9 / 16 + 3 / 16))), abs=1e-3)


def test_a_budget_is_shared_out_among_the_runs_of_a_method() -> None:
    table = {**POINT, "seed": 0, "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 1, "batch_size": 0}}
    table = {key: value for key, value in table.items() if key not in ("points", "reference", "names")}
    alone, shared = (affordable(table, {"bytes": 40_000}, points) for points in (1, 2))
    assert shared == alone // 2 > 1
    assert shares(1) == [0.5]
    assert shares(3) == pytest.approx([0.05, 0.5, 0.95])


def test_preferences_dominate_more_than_weighted_sums_where_a_front_bends_inwards() -> None:
    def of(by: str, name: str) -> float:
        how = {"name": name, "lr": 0.2, "local_steps": 5, "batch_size": 0}
        found = volume({**POINT, "budget": {"bytes": 60_000}, "by": by, "algorithm": how}, 0)
        assert found["rounds"] == found["values"]["each"] > 3
        return float(found["values"]["volume"])

    one, sums, preferences = of("", "fedavg"), of("weights", "fedavg"), of("preference", "fedcmoo-pref")
    assert 0 < one < sums < preferences < 100
