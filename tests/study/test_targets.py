"""What a comparison measures: figures of objectives and over them, and the cost of reaching a target."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.core.errors import BadInput
from polyfed.study.measures import Measure, cost_of, easiest_target, measures_of, read_target, shown_measures


def summary(objectives: int, **metrics: float) -> dict[str, Any]:
    names = [f"o{i}" for i in range(objectives)]
    better = {"loss": "lower", "accuracy": "higher", "odd": "lower"}
    return {
        "objectives": {name: {"loss": 1.0, **metrics} for name in names},
        "better": dict.fromkeys(names, better),
    }


def line(round: int, left: float | None, right: float | None, evaluated: bool = True) -> dict[str, Any]:
    told: dict[str, Any] = {"round": round, "bytes_up": 10, "seconds": 0.5}
    metrics = {"left": {"accuracy": left}, "right": {"accuracy": right}}
    return told | ({"losses": {"left": 1.0, "right": 2.0}, "metrics": metrics} if evaluated else {})


RUN = [line(1, 0.1, 0.2), line(2, 0.5, 0.3, evaluated=False), line(3, 0.6, 0.4), line(4, 0.5, None)]
ACCURACY = [Measure("accuracy", "higher", "left"), Measure("accuracy", "higher", "right")]


def test_each_objective_has_its_figures_and_all_have_means_and_worst() -> None:
    keys = [one.key for one in measures_of([summary(2, accuracy=0.5)])]
    assert keys == [
        "o0.accuracy", "o1.accuracy", "o0.loss", "o1.loss", "mean.accuracy", "worst.accuracy", "mean.loss",
        "worst.loss",
    ]  # fmt: skip
    assert [one.key for one in measures_of([summary(1, accuracy=0.5)])] == ["o0.accuracy", "o0.loss"]


def test_an_objective_called_mean_keeps_its_own_figures() -> None:
    told = {"objectives": {"mean": {"loss": 1.0}, "variance": {"loss": 3.0}}}
    measures = measures_of([told])
    assert [one.key for one in measures] == ["mean.loss", "variance.loss", "worst.loss"]
    assert [one.of(told["objectives"]) for one in measures] == [1.0, 3.0, 3.0]


def test_a_figure_whose_square_is_infinite_is_missing() -> None:
    values = (1e149, 1e160, float("nan"), float("-inf"), None, True)
    assert [Measure("loss", "lower", "o").of({"o": {"loss": value}}) for value in values] == [1e149, *[None] * 5]


def test_a_table_shows_what_it_has_room_for() -> None:
    few, more, many = (measures_of([summary(n, accuracy=0.5)]) for n in (3, 4, 7))
    assert [one.key for one in shown_measures(few)] == [f"o{i}.{m}" for m in ("accuracy", "loss") for i in range(3)]
    assert [one.key for one in shown_measures(more)] == [f"o{i}.accuracy" for i in range(4)]
    assert [one.key for one in shown_measures(many)] == ["mean.accuracy", "worst.accuracy", "mean.loss", "worst.loss"]
    assert shown_measures([]) == []


def test_models_without_a_metric_in_common_show_each_its_own() -> None:
    told = summary(2, accuracy=0.5)
    told["objectives"] |= {"q": {"excess": 0.1, "loss": 1.0}, "r": {"absolute_error": 0.1, "loss": 1.0}}
    keys = [one.key for one in shown_measures(measures_of([told]))]
    assert sorted(keys) == ["o0.accuracy", "o1.accuracy", "q.excess", "r.absolute_error"]


def test_a_metric_that_nobody_knows_the_direction_of_is_left_out() -> None:
    told = summary(1, thing=0.5)
    assert [one.key for one in measures_of([told])] == ["o0.loss"]
    told["better"]["o0"]["thing"] = "higher"
    assert [one.key for one in measures_of([told])] == ["o0.thing", "o0.loss"]


def test_over_objectives_a_missing_value_is_missing() -> None:
    rows: dict[str, dict[str, Any]] = {"a": {"accuracy": 0.5}, "b": {"accuracy": 0.7}, "c": {"loss": 1.0}}
    assert Measure("accuracy", "higher", over="worst").of(rows) == 0.5
    assert Measure("accuracy", "lower", over="worst").of(rows) == 0.7
    assert Measure("accuracy", "higher", over="mean").of(rows) == pytest.approx(0.6)
    assert Measure("accuracy", "higher", "c").of(rows) is None
    rows["b"]["accuracy"] = None
    assert Measure("accuracy", "higher", over="mean").of(rows) is None
    assert Measure("accuracy", "higher", "a").of({"a": {"accuracy": float("nan")}}) is None


def test_the_cost_of_a_target_is_what_was_spent_by_its_round() -> None:
    reached = cost_of(read_target("left.accuracy=0.5", ACCURACY), RUN)
    assert reached == {"rounds": 3, "bytes_up": 30, "seconds": 1.5}
    assert cost_of(read_target("accuracy=0.4", ACCURACY), RUN) == reached  # all objectives
    assert cost_of(read_target("accuracy=0.5", ACCURACY), RUN) is None


def test_without_a_target_it_is_what_the_worst_run_reached_at_its_best() -> None:
    other = [line(1, 0.3, 0.35), line(2, 0.9, 0.3)]
    found = easiest_target(ACCURACY, [RUN, other])
    assert found is not None
    assert (found.value, found.given) == (0.3, False)
    assert all(cost_of(found, run) is not None for run in (RUN, other))
    assert found.sentence == "accuracy is at least 0.3 for every objective, which every run reaches"
    alone = easiest_target(ACCURACY[:1], [RUN, other])
    assert alone is not None
    assert alone.sentence == "left accuracy is at least 0.6, which every run reaches"
    assert easiest_target([], [RUN]) is None
    assert easiest_target(ACCURACY, [[line(1, None, None)]]) is None


@pytest.mark.parametrize("text", ["accuracy", "accuracy=", "accuracy=high", "=0.5", "accuracy=nan", "acuracy=0.5"])
def test_a_target_is_a_metric_and_a_number(text: str) -> None:
    with pytest.raises(BadInput, match="--target"):
        read_target(text, ACCURACY)
