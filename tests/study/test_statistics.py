"""Means, spreads and tests of a comparison, against scipy's and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from polyfed.study.statistics import compare_pairs, holm, paired_t, spread


def test_the_paired_test_is_scipys() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 5, 20):
        a, b = rng.normal(size=n), rng.normal(0.5, size=n)
        assert paired_t(a.tolist(), b.tolist()) == pytest.approx(float(ttest_rel(a, b).pvalue), rel=1e-12)


def test_differences_without_a_spread() -> None:
    assert paired_t([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert paired_t([2.0, 3.0, 4.0], [1.0, 2.0, 3.0]) == 0.0


def test_holm_by_hand() -> None:
    # 0.01 * 4, 0.02 * 3, then 0.03 * 2 which equals the one before, then 0.04 which may not be below it
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_spreads_leave_out_what_is_missing() -> None:
    found = spread([1.0, 3.0, None])
    assert found == {"mean": 2.0, "std": pytest.approx(2**0.5), "values": [1.0, 3.0, None]}
    assert spread([4.0])["std"] is None
    assert spread([None])["mean"] is None


def test_pairs_say_who_is_better_whichever_way_that_is() -> None:
    rows: dict[str, list[Any]] = {"a": [0.9, 0.91, 0.92], "b": [0.8, 0.812, 0.818], "c": [0.9, 0.8, None]}
    (pair,) = compare_pairs(rows, "higher")  # c lacks a seed
    assert (pair["better"], pair["worse"], pair["holds"]) == ("a", "b", True)
    assert pair["difference"] == pytest.approx(0.1)
    assert pair["p"] == pytest.approx(float(ttest_rel(rows["a"], rows["b"]).pvalue))
    assert compare_pairs(rows, "lower")[0]["better"] == "b"


def test_two_seeds_are_not_tested() -> None:
    assert compare_pairs({"a": [1.0, 2.0], "b": [3.0, 4.1]}, "higher") == []
