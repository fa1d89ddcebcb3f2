"""The gain asks every metric itself whether more of it is better; models of some objectives may be held by some."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from polyfed import FedAvg, Metric, Objective, Problem
from polyfed.experiment.building import plan
from polyfed.experiment.gain import Watch, lines, more_is_better, values
from polyfed.models.basic import Point
from polyfed.run.plan import one_part
from small import small_federation


def first(output: Tensor, target: Tensor) -> Tensor:
    return output[:, 0]


def told(watch: Watch, problem: Problem, heard: list[dict[str, float]]) -> Watch:
    """A watch that has heard of a model's metrics, round after round."""
    parts = {"a": one_part(problem, small_federation(), FedAvg())[""]}
    run: Any = SimpleNamespace(plan=SimpleNamespace(parts=parts), stop=lambda: None)
    for t, row in enumerate(heard, 1):
        watch.on_evaluation(run, {"round": t, "losses": {"a/y": 0.0}, "metrics": {"a/y": row}})
    return watch


@pytest.mark.parametrize(("metric", "rounds"), [("hits", 3), ("misses", 2)])
def test_a_metric_of_ones_own_is_reached_from_the_side_it_says(metric: str, rounds: int) -> None:
    both = {"hits": Metric(first, "higher"), "misses": Metric(first, "lower")}
    problem = Problem(Point(2), [Objective("y", first, both)])
    heard = [{"hits": 0.1, "misses": 0.9}, {"hits": 0.4, "misses": 0.5}, {"hits": 0.5, "misses": 0.4}]
    assert told(Watch(metric, {"a": 0.5}), problem, heard).hits == {"a": rounds}


def test_of_several_objectives_the_worst_counts() -> None:
    line = {"losses": {"a/y": 1.0, "a/z": 2.0}, "metrics": {"a/y": {"hits": 0.1}, "a/z": {"hits": 0.3}}}
    assert values(line, "hits", {"a": True}) == {"a": 0.1}
    assert values(line, "loss", {"a": False}) == {"a": 2.0}


def test_models_of_some_objectives_keep_who_holds_them() -> None:
    data = {"name": "two-digits", "clients": 6, "examples": 60, "holds": "one-each"}
    models = {"left": {"objectives": ["left"]}, "right": {"objectives": ["right"]}}
    made, _ = plan("some", {"cohort": 6, "data": data, "models": models, "algorithm": {"name": "fedavg"}})
    held = {name: list(part.federation.holds) for name, part in made.parts.items()}
    assert held == {"left": ["left"], "right": ["right"]}
    assert more_is_better(made, "accuracy") == {"left": True, "right": True}
    assert more_is_better(made, "gap") == {"left": False, "right": False}


def test_models_that_are_measured_on_different_rows_are_told_apart() -> None:
    found = {"metric": "loss", "target": 0.5, "seeds": 1, "split": {"a": "test", "b": "train"}, "rows": []}
    assert next(lines(found)) == "loss on test (a), train (b) data to 0.5; 1 seed"
