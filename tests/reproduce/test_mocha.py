"""What MOCHA's items compute by functions, on small made-up tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.core.settings import Settings
from polyfed.experiment.building import plan
from polyfed.reproduce.papers.mocha import rounds, tasks
from polyfed.reproduce.papers.mocha.errors import errors, sizes
from polyfed.reproduce.papers.mocha.rounds import Trace, curve, dropped, examples, optimum, reached, trace, tuned
from polyfed.reproduce.papers.mocha.tasks import Arrays, shuffled
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute
from polyfed.work.linear.examples import as_examples
from polyfed.work.linear.losses import find

TIED: Settings = {"loss": "hinge", "regulariser": {"name": "mean", "lam1": 1.0, "lam2": 1.0}}
LTE: Settings = {"lte": {"communication": 100.0}}


def made(sizes: list[int], numbers: bool = False) -> tuple[Arrays, Arrays]:
    """Tasks that are nearly alike."""
    rng = np.random.default_rng(0)
    Xs = [rng.normal(size=(n, 4)) for n in sizes]
    ys = [X @ [1.0, -1.0, 0.5, 0.0] + 0.1 * rng.normal(size=len(X)) for X in Xs]
    return Xs, ys if numbers else [(y > 0).astype(float) for y in ys]


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Made-up rows in place of the files', and nothing remembered of them."""
    monkeypatch.setattr(tasks, "load", lambda name: made([40, 60, 80, 400], numbers=name == "school"))
    yield
    examples.cache_clear()
    rounds._optimum.cache_clear()


def test_rounds_are_those_of_a_run(tmp_path: Path) -> None:
    settings: Settings = {
        "rounds": 4, "cohort": "all", "seed": 3, "engine": {"name": "local"},
        "data": {"name": "related-tasks", "partition": "natural", "key": "task", "test": 0.25},
        "model": {"name": "linear", "dtype": "float64"},
        "algorithm": {"name": "mocha", "steps": 30, "omega_every": 2, "regulariser": {"name": "clustered"}},
        "faults": {"drop": 0.4, "variability": "high"}, "network": {"communication": 100.0}, "evaluate": {"every": 1},
    }  # fmt: skip
    made, resolved = plan("made", settings)
    lines = execute(made, RunDirectory.create(tmp_path / "run", "made", {"name": "made", **resolved})).history
    (part,) = made.parts.values()
    data = part.federation
    (name,) = data.targets
    mine = [data.train[i] for i in range(len(data.train))]
    nodes = [
        as_examples(
            np.hstack([np.asarray(data.x[rows], dtype=float), np.ones((len(rows), 1))]),
            np.where(np.asarray(data.targets[name][rows]).ravel() > 0, 1.0, -1.0), find("hinge"),
        )
        for rows in mine
    ]  # fmt: skip
    found = trace(nodes, settings["algorithm"], LTE, seed=3, rounds=4, faults=settings["faults"])
    assert found.primal[1:] == pytest.approx([line["primal"] for line in lines], rel=1e-9)
    spent = np.cumsum([line["simulated_seconds"] for line in lines])
    assert found.seconds["lte"][1:] == pytest.approx(list(spent), rel=1e-9)


def test_time_to_a_level_and_curves() -> None:
    found = Trace([0, 1, 2, 3], {"lte": [0.0, 0.01, 0.02, 0.04]}, [30.0, 20.0, 10.9, 10.0], [0.0] * 4)
    assert reached(found, "lte", 10.0, 0.1) == 0.02
    assert reached(found, "lte", 9.0, 0.1) == 0.04, "what is not reached counts with all the time there was"
    drawn = curve(found, "lte", 10.0)
    seconds, off = np.array(drawn["x"]["simulated_seconds"]), np.array(drawn["y"])
    assert seconds[0] == pytest.approx(1e-3)
    assert seconds[-1] <= 0.04
    assert off[(seconds > 0.01) & (seconds < 0.02)] == pytest.approx(1.0)
    assert off[0] == pytest.approx(2.0)


def test_the_best_of_the_settings_tried_counts() -> None:
    settings: Settings = {
        "case": "har", "problem": TIED, "method": {"name": "mocha", "omega_every": 0}, "every": 1, "clock": "lte",
        "networks": {"wifi": {"communication": 10.0}, **LTE, "g3": {"communication": 1000.0}},
        "until": 0.005, "horizon": 2e-4, "tries": [{"steps": 1}, {"steps": 300}],
    }  # fmt: skip
    found = tuned(settings, 0)
    few = tuned({**settings, "tries_at_most": 1}, 0)
    assert found["values"]["left"] <= 0.5
    assert found["values"]["lte_10"] <= found["values"]["lte"] < few["values"]["lte"]
    assert found["values"]["slowdown"] == found["values"]["g3"] / found["values"]["wifi"] > 1
    assert {*found["curves"]} == {"WiFi", "LTE", "3G"}


def test_a_node_that_never_answers_leaves_another_optimum() -> None:
    settings: Settings = {
        "case": "har", "method": {**TIED, "name": "mocha", "omega_every": 0, "steps": 200}, "networks": LTE,
        "rounds": 60, "every": 5, "faults": {"drop": 0.5},
    }  # fmt: skip
    found, silent = dropped(settings, 0), dropped({**settings, "faults": {"silent": [3]}}, 0)
    assert found["values"]["left"] < 1 < silent["values"]["left"]
    assert found["values"]["within"] < silent["values"]["within"] == 60


def test_the_optimum_is_below_every_primal_value() -> None:
    best = optimum("har", 0, {**TIED, "omega_every": 0})
    found = trace(
        examples("har", 0), {**TIED, "name": "mocha", "omega_every": 0, "epochs": 20.0}, {}, seed=0, rounds=60
    )
    assert best <= min(found.primal) <= 1.001 * best


@pytest.mark.parametrize("model", ["global", "local", "mtl"])
def test_errors_of_models(model: str) -> None:
    settings: Settings = {
        "case": "har", "model": model, "loss": "hinge", "clusters": 2, "eta": 0.1, "folds": 2, "lams": [0.1, 1.0],
    }  # fmt: skip
    values = errors(settings, 0)["values"]
    assert 0 <= values["error"] < 25
    assert 0 <= values["balanced"] < 25
    assert values["auc"] > 80
    numbers = errors({**settings, "case": "school", "loss": "squared"}, 0)["values"]
    assert numbers["explained"] > 90


def test_rows_are_cut_and_skewed() -> None:
    X, y, X_test, y_test = shuffled("har", 0)
    assert [len(one) for one in y] == [30, 45, 60, 300]
    assert [len(one) for one in y_test] == [10, 15, 20, 100]
    both = np.vstack([X[0], X_test[0]])
    assert len(np.unique(both, axis=0)) == 40
    found: dict[str, Any] = sizes({"case": "har", "skew": True, "paper": [4, 3, 300, 100.0]}, 0)["values"]
    assert (found["tasks"], found["least"], found["most"], found["ratio"]) == (4, 3, 300, 100)
    assert found["counts"] == 0
    assert found["features"] == 4
