"""Every kind of drawing has the record's figures in it, and can be painted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyfed.report.drawing import draw
from polyfed.reproduce.drawing import figures_of
from polyfed.reproduce.item import Claim, Draw, Grid, Item, Measure, Minutes, Row
from polyfed.reproduce.record import Curve, Figures, Record

MEASURES = [Measure(name=name, title=f"the {name}", of="mean.loss", better="lower") for name in ("a", "b", "c")]
CLAIM = Claim(text="So.", kind="order", measures=["a"], rows=["one", "two"])


def item_with(grids: int, **about: Any) -> Item:
    rows = [Row(label="one", series="s", x=1), Row(label="two", series="s", x=2)]
    made = [Grid(name=f"g{i}", title=f"grid {i}", rows=rows) for i in range(grids)]
    return Item(
        paper="p", name="fig1", title="t", where="Figure 1", shows="It.", minutes=Minutes(quick=1, full=1, gpu=1),
        grids=made, measures=MEASURES, claims=[CLAIM], draw=[Draw(**about)],
    )  # fmt: skip


def record_of(item: Item) -> Record:
    cells = [
        Figures(grid.name, row.label, seed, {"a": i + 1 + seed, "b": 10.0 * (i + 1), "c": 5.0})
        for grid in item.grids
        for i, row in enumerate(grid.rows)
        for seed in range(2)
    ]
    curves = [
        Curve(grid.name, row.label, of, "", "round", [1, 2, 3], [3.0, 2.0, 1.0], [0.1, 0.1, 2.0])
        for grid in item.grids
        for row in grid.rows
        for of in ("mean.loss", "x.loss")
    ]
    return Record("p", "fig1", "full", len(cells), cells=cells, curves=curves)


@pytest.mark.parametrize("grids", [1, 2])
@pytest.mark.parametrize(
    "about",
    [
        {"kind": "curves", "of": ["mean.loss", "x.loss"], "log_y": True},
        {"kind": "curves", "of": ["mean.loss"]},
        {"kind": "lines", "measures": ["a", "b"], "log_x": True},
        {"kind": "bars", "measures": ["a", "b"]},
        {"kind": "dots", "measures": ["a"]},
        {"kind": "scatter", "measures": ["a", "b"]},
        {"kind": "radar", "measures": ["a", "b", "c"]},
    ],
    ids=lambda about: f"{about['kind']}-{len(about.get('of', about.get('measures')))}",
)
def test_each_kind_is_painted(about: dict[str, Any], grids: int) -> None:
    item = item_with(grids, **about)
    (figure,) = figures_of(item, record_of(item))
    assert figure.key == "fig1"
    assert {one.name for one in figure.series} == ({"s"} if about["kind"] == "lines" else {"one", "two"})
    assert len(figure.panels) != 1
    assert draw(figure) is not None


def test_numbers_are_the_records() -> None:
    item = item_with(1, kind="lines", measures=["a"])
    (figure,) = figures_of(item, record_of(item))
    np.testing.assert_allclose(figure.series[0].y, [1.5, 2.5])
    np.testing.assert_allclose(figure.series[0].high - figure.series[0].y, [np.sqrt(0.5)] * 2)
    item = item_with(1, kind="curves", of=["mean.loss"], log_y=True)
    (figure,) = figures_of(item, record_of(item))
    np.testing.assert_allclose(figure.series[0].low, [2.9, 1.9, 0.1])  # no band below 0 on a logarithmic axis


@pytest.mark.parametrize(("grids", "measures", "axis"), [(1, ["a", "b"], "y"), (2, ["a", "b"], "x")])
def test_bars_stand_on_a_logarithmic_axis(grids: int, measures: list[str], axis: str) -> None:
    item = item_with(grids, kind="bars", measures=measures, log_y=True)
    (figure,) = figures_of(item, record_of(item))
    np.testing.assert_allclose(figure.series[0].low[0], 1.5 - np.sqrt(0.5))
    drawn = draw(figure).axes[0]
    assert (getattr(drawn, f"get_{axis}scale")(), getattr(drawn, f"get_{'xy'.strip(axis)}scale")()) == ("log", "linear")
    least = getattr(drawn, f"get_{axis}lim")()[0]
    assert least == pytest.approx((1.5 - np.sqrt(0.5)) / 2)  # below the shortest bar and its whisker
    flat = record_of(item)
    flat.cells = [Figures(one.grid, one.row, one.seed, {"a": 1.0 + 99 * one.seed, "b": 1.0}) for one in flat.cells]
    (figure,) = figures_of(item, flat)
    np.testing.assert_allclose(figure.series[0].low[0], 50.5 / 10)  # the mean less its spread is below 0
    item = item_with(grids, kind="bars", measures=measures)
    (figure,) = figures_of(item, record_of(item))
    drawn = draw(figure).axes[0]
    assert getattr(drawn, f"get_{axis}scale")() == "linear"
    assert getattr(drawn, f"get_{axis}lim")()[0] == 0


def test_a_spread_is_drawn_in_place_of_the_mean() -> None:
    item = item_with(1, kind="curves", of=["mean.loss"], spread=True, log_y=True)
    (figure,) = figures_of(item, record_of(item))
    np.testing.assert_allclose(figure.series[0].y, [0.1, 0.1, 2.0])
    assert not len(figure.series[0].low)


def test_what_has_diverged_is_a_gap_and_hides_nothing() -> None:
    item = item_with(1, kind="curves", of=["mean.loss"])
    record = record_of(item)
    record.curves[0] = replace(record.curves[0], mean=[3.0, -1e11, 1.0])
    (figure,) = figures_of(item, record)
    for values in (figure.series[0].y, figure.series[0].low, figure.series[0].high):
        assert np.isnan(values).tolist() == [False, True, False]
    assert np.isfinite(figure.series[1].y).all()
    record.curves[0] = replace(record.curves[0], mean=[3.0, 5e3, 1.0], std=[0.1, 1e11, 0.1])  # one run of several
    (figure,) = figures_of(item, record)
    assert np.nanmax(figure.series[0].high) < 10
    (figure,) = figures_of(item_with(1, kind="curves", of=["mean.loss"], spread=True), record)
    assert np.nanmax(figure.series[0].y) < 10
    record.curves[:] = [replace(record.curves[0], mean=[None, None, None])]
    assert len(figures_of(item, record)[0].series) == 1  # without a warning
    record = record_of(item)
    item = item_with(1, kind="curves", of=["mean.loss"], log_y=True)
    record.curves[0] = replace(record.curves[0], mean=[3.0, 1e11, 1.0])  # which hides nothing there
    assert np.isfinite(figures_of(item, record)[0].series[0].y).all()


def test_points_of_several_grids_share_a_panel_where_their_names_differ() -> None:
    item = item_with(2, kind="scatter", measures=["a", "b"])
    item.grids[1].rows = [Row(label="three"), Row(label="four")]
    (figure,) = figures_of(item, record_of(item))
    assert [one.name for one in figure.series] == ["one", "two", "three", "four"]
    assert {one.panel for one in figure.series} == {""}
    assert not figure.panels


def test_nothing_is_drawn_of_nothing() -> None:
    item = item_with(1, kind="bars", measures=["a"])
    assert figures_of(item, Record("p", "fig1", "full", 4)) == []


def test_points_of_a_series_are_joined() -> None:
    item = item_with(1, kind="scatter", measures=["a", "b"])
    for row in item.grids[0].rows:
        row.series, row.x = "both", None
    (figure,) = figures_of(item, record_of(item))
    (one,) = figure.series
    assert (one.name, one.mode, len(one.y)) == ("both", "both", 2)
    assert list(one.x["x"]) == sorted(one.x["x"])


def test_grids_alone_name_the_places_of_one_measure() -> None:
    item = item_with(2, kind="dots", measures=["a"])
    (figure,) = figures_of(item, record_of(item))
    assert list(figure.categories) == [grid.title or grid.name for grid in item.grids]
