"""The figures of runs: what is in the lines is drawn, in the panels and colours that tell it apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_runs import falling, made_line
from polyfed.report import Figure, Record
from polyfed.report.cast import cast
from polyfed.report.figures import (
    compared,
    failures,
    figures_of,
    front,
    gap,
    gram_error,
    improved,
    losses,
    metrics,
    optimum,
    others,
    parallel,
    personalised,
    profile,
    progress,
    radar,
    splits,
    stationarity,
    ternary,
    train,
    weights,
)
from polyfed.report.records import name_methods


def run(name: str, lines: list[dict[str, Any]] | None = None, seed: int = 0, **algorithm: Any) -> Record:
    settings = {"name": "made", "seed": seed, "rounds": 4, "algorithm": {"name": name, **algorithm}}
    return Record.of(falling(4) if lines is None else lines, f"{name}-{seed}", settings)


def built(figure: Figure | None) -> Figure:
    assert figure is not None
    assert figure.about.endswith(".")
    assert figure.title
    assert figure.key
    return figure


def test_one_run_has_a_colour_an_objective() -> None:
    figure = built(losses([run("fedavg")]))
    assert [(one.name, one.colour, one.panel) for one in figure.series] == [("left", 0, ""), ("right", 1, "")]
    assert figure.series[0].y.tolist() == [2.0, 1.0, 2.0 / 3, 0.5]
    assert figure.y.better == "lower"


def test_curves_are_against_rounds_bytes_and_both_kinds_of_time() -> None:
    lines = [made_line(t, {"left": 1.0}, simulated_seconds=7.0) for t in (1, 2)]
    figure = built(losses([run("fedavg", lines)]))
    assert list(figure.x) == ["round", "bytes_up", "bytes", "seconds", "simulated_seconds"]
    x = figure.series[0].x
    assert {key: values.tolist() for key, values in x.items()} == {
        "round": [1, 2], "bytes_up": [1000, 2000], "bytes": [1500, 3000], "seconds": [0.5, 1.0],
        "simulated_seconds": [7.0, 14.0],
    }  # fmt: skip


def test_several_runs_have_a_panel_an_objective_and_a_colour_a_run() -> None:
    figure = built(losses([run("fedavg"), run("fedcmoo")]))
    assert figure.panels == ("left", "right")
    assert {(one.name, one.colour) for one in figure.series} == {("fedavg", 0), ("fedcmoo", 1)}
    assert len(figure.series) == 4


def test_seeds_of_one_method_share_a_colour_behind_their_mean() -> None:
    lines = [made_line(1, {"left": 3.0}), made_line(2, {"left": 1.0})]
    other = [made_line(1, {"left": 5.0}), made_line(2, {"left": 2.0})]
    figure = built(losses([run("fedavg", lines), run("fedavg", other, seed=1), run("fedcmoo", lines)]))
    mean, *rest = figure.series
    assert (mean.name, mean.faint, mean.run, mean.y.tolist()) == ("fedavg", False, "", [4.0, 1.5])
    seeds = [(one.run, one.faint, one.colour, one.y.tolist()) for one in rest[:2]]
    assert seeds == [("fedavg-0", True, 0, [3.0, 1.0]), ("fedavg-1", True, 0, [5.0, 2.0])]
    assert (rest[2].name, rest[2].faint, rest[2].colour) == ("fedcmoo", False, 1)


def test_the_names_of_a_comparison_that_is_no_comparison_are_none() -> None:
    record = Record("one", {}, Path("study/one"))
    for strange in (None, 3, [3], [{"run": [1], "row": "x"}], [{"run": "one", "row": 3}]):
        name_methods([record], {"cells": strange})
        assert record.method == ""
    name_methods([record], {"cells": [{"run": "one", "row": "x"}]})
    assert record.method == "x"


def test_methods_are_named_by_what_sets_them_apart() -> None:
    roles = cast([run("fedavg", lr=0.1), run("fedavg", lr=0.3), run("fedcmoo", lr=0.1)])
    assert [role.name for role in roles] == ["fedavg lr=0.1", "fedavg lr=0.3", "fedcmoo"]
    assert [role.name for role in cast([run("fedavg", lr=0.1), run("fedavg", lr=0.3)])] == ["lr=0.1", "lr=0.3"]
    same = [Record.of(falling(1), name, {"algorithm": {"name": "fedavg"}, "seed": 0}) for name in ("one", "two")]
    assert [role.name for role in cast(same)] == ["one", "two"]
    again = [*same, run("fedcmoo"), run("fedcmoo", seed=1), Record.of(falling(1), "one", same[0].settings)]
    roles = cast(again)
    assert [role.name for role in roles] == ["one", "two", "fedcmoo", "fedcmoo", "one (2)"]
    assert [role.place for role in roles] == [0, 1, 2, 2, 3]


def test_very_many_objectives_begin_with_a_summary() -> None:
    names = [f"o{k}" for k in range(40)]
    records = [run(name, falling(3, names)) for name in ("fedavg", "fedcmoo")]
    figure = built(losses(records))
    assert figure.panels == ("mean of all objectives", "worst objective", *names)
    assert figure.shown == 2
    mean, worst = (figure.in_panel(panel)[0] for panel in figure.panels[:2])
    assert mean.y[0] == pytest.approx(2.0 + 0.1 * 19.5)
    assert worst.y[0] == pytest.approx(2.0 + 0.1 * 39)
    accuracy = metrics(records)[0]
    assert accuracy.in_panel("worst objective")[0].y[0] == pytest.approx(1 - (2.0 + 0.1 * 39) / 4)
    assert built(losses(records[:1])).panels[:2] == figure.panels[:2]


def test_each_metric_is_a_figure_of_the_objectives_that_have_it() -> None:
    lines = [made_line(1, {"left": 1.0, "right": 2.0}) for _ in range(1)]
    lines[0]["metrics"]["right"]["auc"] = 0.7
    found = {figure.key: figure for figure in metrics([run("fedavg", lines)])}
    assert set(found) == {"metric-accuracy", "metric-auc"}
    assert [one.name for one in found["metric-auc"].series] == ["right"]
    assert found["metric-accuracy"].y.better == "higher"


def test_many_models_stand_side_by_side() -> None:
    lines = [made_line(t, {"digits/left": 1.0 / t, "digits/right": 2.0 / t, "cars/price": 3.0 / t}) for t in (1, 2)]
    record = Record.of(lines, "many", {"models": {"digits": {}, "cars": {}}, "schedule": {"name": "mfa-rr"}})
    figure = built(losses([record]))
    assert figure.panels == ("digits", "cars")
    assert [one.name for one in figure.in_panel("digits")] == ["left", "right"]
    assert len({one.colour for one in figure.series}) == 3
    assert record.algorithm == "mfa-rr"


def test_losses_that_reach_far_are_on_a_logarithmic_axis() -> None:
    far = [made_line(1, {"left": 50.0}), made_line(2, {"left": 0.01})]
    below = [made_line(1, {"left": 50.0}), made_line(2, {"left": -0.01})]
    assert built(losses([run("fedavg", far)])).y.log
    assert not built(losses([run("fedavg", below)])).y.log


def test_weights_of_many_objectives_are_a_heat_map() -> None:
    names = [f"o{k}" for k in range(20)]
    lines = [made_line(t, {}, weights={name: (k + t) / 300 for k, name in enumerate(names)}) for t in range(1, 301)]
    figure = built(weights([run("fedcmoo", lines)]))
    assert figure.kind == "heatmap"
    assert figure.rows == tuple(names)
    assert figure.matrix is not None
    assert figure.categories[0] == "1"
    assert figure.categories[-1] == "300"
    assert len(figure.categories) == 200
    assert figure.matrix[3, 0] == pytest.approx(4 / 300)
    assert "200 of 300" in figure.notes[0]
    assert built(weights([run("fedcmoo", lines), run("fsmgda", lines)])).panels[:2] == (
        "largest weight", "smallest weight",
    )  # fmt: skip


def test_the_weight_of_an_only_objective_is_no_figure() -> None:
    assert weights([run("fedavg", [made_line(1, {"left": 1.0}, weights={"left": 1.0})])]) is None


def ended(name: str, **values: float) -> Record:
    return run(name, [made_line(1, dict.fromkeys(values, 9.0)), made_line(2, values)])


def test_a_front_of_two_objectives_joins_what_is_not_dominated() -> None:
    records = [ended("a", f=1.0, g=4.0), ended("b", f=3.0, g=2.0), ended("c", f=3.5, g=4.5), ended("d", f=4.0, g=1.0)]
    figure = built(front(records))
    joined = figure.series[0]
    assert joined.name == "not dominated"
    assert joined.x["f"].tolist() == [1.0, 3.0, 4.0]
    assert joined.y.tolist() == [4.0, 2.0, 1.0]
    points = {one.name: (one.x["f"][0], one.y[0], one.ids) for one in figure.series[1:]}
    assert points["c"] == (3.5, 4.5, ("c-0",))
    assert figure.series[3].labels[0].endswith("dominated")
    assert "3 of them" in figure.about


def test_seeds_of_one_method_are_one_point_of_a_front() -> None:
    lines = [[made_line(1, {"f": f, "g": 3.0 - f})] for f in (1.0, 2.0)]
    figure = built(
        front([run("a", lines[0]), run("a", lines[1], seed=1), run("b", [made_line(1, {"f": 1.5, "g": 1.0})])])
    )
    rows = [(one.name, one.faint, one.x["f"].tolist(), one.y.tolist()) for one in figure.series]
    assert rows == [("a", False, [1.5], [1.5]), ("b", False, [1.5], [1.0]), ("a", True, [1.0, 2.0], [2.0, 1.0])]
    assert "1 of them" in figure.about
    assert "mean of its seeds" in figure.about
    assert figure.series[0].labels == ("a, mean of 2 seeds: f 1.5, g 1.5, dominated",)
    assert figure.series[2].ids == ("a-0", "a-1")


def test_a_front_is_turned_where_more_is_better() -> None:
    records = [ended("a", f=1.0, g=1.0), ended("b", f=2.0, g=2.0)]
    figure = built(front(records, "accuracy"))
    assert "1 of them" in figure.about
    assert "up and right" in figure.notes[0]


def test_a_front_as_it_was_after_a_round() -> None:
    figure = built(front([ended("a", f=1.0, g=4.0), ended("b", f=3.0, g=2.0)], at=1))
    assert all(one.y.tolist() == [9.0] for one in figure.series if one.mode == "points")


def test_a_front_of_three_is_three_projections_and_of_more_parallel_axes() -> None:
    three = built(front([ended("a", f=1.0, g=4.0, h=2.0), ended("b", f=3.0, g=2.0, h=1.0)]))
    assert three.panels == ("g against f", "h against f", "h against g")
    assert len(three.panel_axes) == 3
    assert three.panel_axes["h against g"][0].key == "g"
    four = built(front([ended("a", f=1.0, g=4.0, h=2.0, i=1.0), ended("b", f=3.0, g=2.0, h=1.0, i=1.0)]))
    assert four.kind == "parallel"
    assert four.key == "front"


def test_three_objectives_are_a_triangle_too() -> None:
    corners = [{"f": 1.0, "g": 2.0, "h": 2.0}, {"f": 2.0, "g": 1.0, "h": 2.0}, {"f": 2.0, "g": 2.0, "h": 1.0}]
    records = [ended(f"m{i}", **values) for i, values in enumerate([*corners, {"f": 1.5, "g": 1.5, "h": 2.0}])]
    figure = built(ternary(records))
    places = [tuple(float(one.x[key][0]) for key in "abc") for one in figure.series]
    assert places == [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.5, 0.0)]
    assert [one.y[0] for one in figure.series] == pytest.approx([1 / 3] * 4)
    assert figure.categories == ("f", "g", "h")
    assert ternary(records[:3]) is None
    assert ternary([ended(f"m{i}", f=1.0 * i, g=2.0) for i in range(5)]) is None


def test_runs_of_other_objectives_are_not_on_the_front() -> None:
    figure = built(front([ended("a", f=1.0, g=4.0), ended("b", f=3.0, g=2.0), ended("c", other=1.0)]))
    assert all(one.name != "c" for one in figure.series)
    assert front([ended("a", f=1.0, g=4.0)]) is None
    assert front([ended("c", other=1.0), ended("d", other=2.0)]) is None


def test_parallel_axes_are_all_turned_better_up() -> None:
    figure = built(parallel([ended("a", f=1.0, g=4.0), ended("b", f=3.0, g=2.0)], "loss"))
    rows = {one.name: one.y.tolist() for one in figure.series}
    assert rows == {"a": [1.0, 0.0], "b": [0.0, 1.0]}
    assert [(axis.low, axis.high) for axis in figure.axes] == [(3.0, 1.0), (4.0, 2.0)]
    turned = built(parallel([ended("a", f=1.0, g=4.0), ended("b", f=3.0, g=2.0)], "accuracy"))
    assert {one.name: one.y.tolist() for one in turned.series} == rows


def test_a_radar_of_nearly_the_same_accuracies_shows_losses() -> None:
    def ended(loss: float, name: str) -> Record:
        return run(name, [made_line(1, {f"o{k}": loss for k in range(3)})])  # an accuracy of 1 - loss / 4

    assert built(radar([ended(0.1, "fedavg"), ended(0.2, "afl")])).y.key == "loss"
    assert built(radar([ended(0.1, "fedavg"), ended(2.0, "afl")])).y.key == "accuracy"


def test_a_radar_shows_three_to_twelve_objectives() -> None:
    def values(n: int, start: float) -> Record:
        return ended(f"m{start:g}", **{f"o{k}": start + k / 10 for k in range(n)})

    for n in (3, 12):
        figure = built(radar([values(n, 1.0), values(n, 2.0)]))
        assert len(figure.categories) == n
        assert figure.series[0].labels[0] == "o0: 0.75"
    assert radar([values(2, 1.0), values(2, 2.0)]) is None
    assert radar([values(13, 1.0), values(13, 2.0)]) is None
    assert built(profile([values(13, 1.0), values(13, 2.0)])).kind == "parallel"
    assert built(profile([values(5, 1.0), values(5, 2.0)])).kind == "radar"
    assert built(profile([values(5, 1 + k / 10) for k in range(9)])).kind == "parallel"  # too many polygons
    assert profile([values(2, 1.0), values(2, 2.0)]) is None


def test_a_radar_of_losses_has_the_lowest_outside() -> None:
    def without(record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key != "metrics"}

    lines = [[without(made_line(1, {"f": v, "g": 1.0, "h": 2.0}))] for v in (1.0, 2.0)]
    figure = built(radar([run("a", lines[0]), run("b", lines[1])]))
    assert [one.y.tolist() for one in figure.series] == [[1.0, 1.0, 1.0], [0.5, 1.0, 1.0]]
    assert "twice as much" in figure.notes[0]


def test_one_runs_radar_is_its_first_evaluation_beside_its_last() -> None:
    figure = built(radar([run("fedavg", falling(4, ("f", "g", "h")))]))
    assert [one.name for one in figure.series] == ["round 1", "round 4"]


def test_methods_are_compared_by_mean_and_spread_over_seeds() -> None:
    records = [run("a", [made_line(1, {"f": v})], seed=i) for i, v in enumerate((1.0, 3.0))]
    found = {figure.key: figure for figure in compared([*records, run("b", [made_line(1, {"f": 5.0})])])}
    a, b = found["compared-loss"].series
    root = np.sqrt(2.0)
    assert (a.y[0], a.low[0], a.high[0]) == (2.0, pytest.approx(2 - root), pytest.approx(2 + root))
    assert b.y[0] == 5.0
    assert not len(b.low)
    assert "1 to 2 seeds" in found["compared-loss"].notes[0]
    assert found["compared-accuracy"].y.better == "higher"
    assert compared([run("a")]) == []


def test_failures_are_told_by_client_and_reason() -> None:
    lines = [
        made_line(1, {"f": 1.0}, failures=[{"client": 3, "why": "its update is 90 times too long; it is left out"}]),
        made_line(2, {"f": 1.0}, failures=[
            {"client": 3, "why": "its update is 1.5e+03 times too long; it is left out"},
            {"client": 7, "name": "Oslo", "why": "timed out"}, {"client": None, "why": "refused"},
        ]),
    ]  # fmt: skip
    figure = built(failures([run("fedavg", lines)]))
    assert figure.categories == ("3", "Oslo", "the engine")
    assert figure.stacked
    assert {one.name: one.y.tolist() for one in figure.series} == {
        "its update is … times too long": [2, 0, 0], "refused": [0, 0, 1], "timed out": [0, 1, 0],
    }  # fmt: skip
    alone = built(failures([run("fedavg", lines), run("fedcmoo")]))
    assert alone.categories == figure.categories
    both = built(failures([run("fedavg", lines), run("fedcmoo", lines[1:]), run("fsmgda")]))
    assert {one.name: one.y.sum() for one in both.series} == {"fedavg": 4, "fedcmoo": 3}
    assert failures([run("fedcmoo")]) is None


def test_single_numbers_have_figures_of_their_own() -> None:
    more = {"improved": 0.5, "gram_error": 0.1, "stationarity": 0.3, "client_stationarity": 0.2, "distance": 2.0}
    lines = [made_line(t, {"f": 1.0}, **more, gap=1e-3, delta_q=1.0, mine=t, still=4) for t in (1, 2)]
    records = [run("fedcmoo", lines)]
    assert built(improved(records)).series[0].y.tolist() == [0.5, 0.5]
    assert built(gram_error(records)).series[0].y.tolist() == [0.1, 0.1]
    assert built(gap(records)).title == "Gap of the weights"
    assert len(built(stationarity(records)).series) == 2
    assert len(built(optimum(records)).series) == 2
    rest = built(others(records))
    assert rest.title == "mine"
    assert rest.series[0].y.tolist() == [1.0, 2.0]
    assert gap([run("fedcmoo", [made_line(1, {"f": 1.0}, gap=1e-17)])]) is None  # rounding


def test_numbers_of_several_models_are_told_apart() -> None:
    lines = [made_line(t, {"a/f": 1.0, "b/g": 1.0}, gap={"a": 0.1, "b": 0.2}, improved={"a": 1.0}) for t in (1, 2)]
    record = Record.of(lines, "many", {"models": {"a": {}, "b": {}}})
    assert {one.name for one in built(gap([record])).series} == {"a", "b"}


def test_other_splits_training_losses_and_local_progress() -> None:
    valid = {"losses": {"f": 0.7}, "metrics": {"f": {"accuracy": 0.6}}}
    lines = [made_line(1, {"f": 1.0}, splits={"valid": valid}, train={"f": 2.0}, progress={"f": {"loss": 0.3}})]
    records = [run("fedavg", lines)]
    assert [figure.key for figure in splits(records)] == ["valid-losses", "valid-metric-accuracy"]
    assert built(train(records)).series[0].y.tolist() == [2.0]
    assert progress(records)[0].series[0].y.tolist() == [0.3]
    assert progress(records)[0].y.better == "higher"


def test_personalised_figures_stand_beside_the_global_ones() -> None:
    own = {"test": {"losses": {"left": 0.1, "right": 0.2}, "metrics": {"left": {"accuracy": 0.9}, "right": {}}}}
    lines = [made_line(t, {"left": 1.0, "right": 2.0}, personalised=own) for t in (1, 2)]
    loss, accuracy = personalised([run("fedavg", lines)])
    rows = [(one.panel, one.name, one.y[0], one.dash) for one in loss.series]
    assert rows == [
        ("left", "global", 1.0, 0), ("left", "personalised", 0.1, 1),
        ("right", "global", 2.0, 0), ("right", "personalised", 0.2, 1),
    ]  # fmt: skip
    assert accuracy.key == "personalised-accuracy"
    assert personalised([run("fedavg")]) == []
    both = personalised([run("fedavg", lines), run("fedprox", lines)])[0]
    assert {one.name for one in both.in_panel("left")} == {
        "fedavg, global", "fedavg, personalised", "fedprox, global", "fedprox, personalised",
    }  # fmt: skip


def test_all_figures_have_keys_of_their_own_and_runs_without_rounds_have_none() -> None:
    found = figures_of([run("fedavg"), run("fedcmoo"), run("fsmgda", [])])
    keys = [figure.key for figure in found]
    assert len(set(keys)) == len(keys)
    assert {"losses", "metric-accuracy", "front", "compared-loss"} <= set(keys)
    assert figures_of([run("fedavg", [])]) == []
    assert figures_of([]) == []
