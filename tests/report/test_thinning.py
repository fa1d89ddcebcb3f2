"""Fewer points for a page: none is made up, and what stands out stays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.report import Axis, Figure, Series
from polyfed.report.figure import Numbers
from polyfed.report.thinning import kept, thinned


def figure_of(*curves: Numbers) -> Figure:
    rounds: dict[str, Numbers] = {
        "round": np.arange(1.0, len(curves[0]) + 1),
        "bytes_up": 7.0 * np.arange(float(len(curves[0]))),
    }
    series = tuple(Series(f"o{i}", y, rounds) for i, y in enumerate(curves))
    return Figure(
        "losses", "Losses", "About.", "lines", Axis("loss", "loss"), {"round": Axis("round", "round")}, series
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(10, 60))
@settings(max_examples=40, deadline=None)
def test_points_are_the_runs_own_with_the_ends_and_the_peaks(seed: int, many: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    curves = [rng.normal(size=500) for _ in range(many)]
    before, after = figure_of(*curves), thinned(figure_of(*curves), most)
    for whole, some in zip(before.series, after.series, strict=True):
        own = dict(zip(whole.x["round"].tolist(), whole.y.tolist(), strict=True))
        assert all(own[x] == y for x, y in zip(some.x["round"].tolist(), some.y.tolist(), strict=True))
        assert some.x["bytes_up"].tolist() == [7.0 * (x - 1) for x in some.x["round"].tolist()]
        assert some.x["round"][0] == 1
        assert some.x["round"][-1] == 500
        assert some.y.min() == whole.y.min()
        assert some.y.max() == whole.y.max()
        assert len(some) <= most + 2 * many + 2


def test_a_spike_of_one_round_stays() -> None:
    smooth = 1 / np.arange(1.0, 5001)
    smooth[3333] = 9.0
    one = thinned(figure_of(smooth), 100).series[0]
    assert len(one) <= 102
    assert one.y[one.x["round"] == 3334].tolist() == [9.0]


def test_peaks_of_every_stretch_stay() -> None:
    wave = np.sin(np.arange(10_000.0))
    one = thinned(figure_of(wave), 400).series[0]
    stretch = one.y[(one.x["round"] > 4000) & (one.x["round"] < 6000)]
    assert stretch.max() > 0.99
    assert stretch.min() < -0.99


def test_eight_series_over_one_runs_rounds_keep_the_same_rounds() -> None:
    rng = np.random.default_rng(0)
    after = thinned(figure_of(*(rng.normal(size=5000) for _ in range(40))), 200)
    assert len({one.x["round"].tobytes() for one in after.series}) == 5
    assert len(after.to_json()["columns"]) == 10
    assert max(map(len, after.series)) <= 202


def test_what_is_not_a_number_does_not_matter() -> None:
    y = np.full(1000, np.nan)
    assert kept([y], 50).tolist() == [0, 999]
    y[500] = 3.0
    assert 500 in kept([y], 50)


def test_short_series_and_other_figures_stay_as_they_are() -> None:
    short = figure_of(np.arange(30.0))
    assert thinned(short, 100) is short
