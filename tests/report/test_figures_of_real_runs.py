"""Real runs, small ones: what they write is what figures read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

from polyfed import Federation, Mocha, Objective, Problem, train
from polyfed.algorithms.tasks.regularisers import Clustered
from polyfed.cli import app
from polyfed.report import Figure, Record
from polyfed.report.figures import figures_of, omega

EVERYTHING = [
    "data.clients=8", "data.examples=160", "data.test=0.25", "cohort=4", "algorithm.local_steps=2",
    "evaluate.clients=true", "evaluate.per_client=true", "evaluate.improved=true", "evaluate.stationarity=1",
    "evaluate.progress=1", "evaluate.personalise={steps=1}", 'evaluate.splits=["train"]', "algorithm.gram_error=true",
    "network.name=lte",
]  # fmt: skip


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run of two digits that measures all there is."""
    out = tmp_path_factory.mktemp("runs") / "everything"
    sets = [word for one in EVERYTHING for word in ("--set", one)]
    done = CliRunner().invoke(app, ["run", "two-digits", "--rounds", "3", "--out", str(out), *sets])
    assert done.exit_code == 0, done.output
    return Record.read(out)


@pytest.fixture(scope="module")
def figures(everything: Record) -> dict[str, Figure]:
    return {figure.key: figure for figure in figures_of([everything])}


def test_all_that_a_run_measures_has_a_figure(figures: dict[str, Figure]) -> None:
    assert set(figures) >= {
        "losses", "metric-accuracy", "weights", "train", "train-losses", "clients-loss", "clients-loss-last",
        "clients-accuracy", "improved", "stationarity", "gram-error", "progress-metric-loss", "personalised-loss",
    }  # fmt: skip
    assert "others" not in figures  # nothing was forgotten


def test_points_are_those_of_the_lines(everything: Record, figures: dict[str, Figure]) -> None:
    assert everything.path is not None
    lines = [json.loads(text) for text in (everything.path / "metrics.jsonl").read_text().splitlines()]
    drawn = {one.name: one for one in figures["losses"].series}
    for name in ("left", "right"):
        assert drawn[name].y.tolist() == [line["losses"][name] for line in lines]
    assert drawn["left"].x["bytes_up"].tolist() == np.cumsum([line["bytes_up"] for line in lines]).tolist()
    assert drawn["left"].x["simulated_seconds"][-1] == pytest.approx(sum(line["simulated_seconds"] for line in lines))
    worst = [line["clients"]["left"]["accuracy"]["worst_10"] for line in lines]
    mine = [one for one in figures["clients-accuracy"].in_panel("left") if one.name == "worst decile"]
    assert mine[0].y == pytest.approx(worst)


def test_a_runs_own_word_says_which_way_is_better(everything: Record) -> None:
    assert everything.summary is not None
    assert everything.summary["better"]["left"] == {"loss": "lower", "accuracy": "higher"}


def test_tasks_have_their_clients_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = {}
    for k, town in enumerate(("Oslo", "Rome", "Bergen", "Milan")):
        x = rng.normal(size=(20, 3)).astype(np.float32)
        clients[town] = (x, {"y": ((-1) ** k * x[:, 0] > 0).astype(np.int64)})
    problem = Problem(nn.Linear(3, 1), [Objective("y", "binary")])
    method = Mocha(loss="logistic", omega_every=1, regulariser=Clustered(lam=1.0, clusters=2))
    train(problem, Federation.from_clients(clients), method, rounds=4, out=tmp_path / "run")
    (figure,) = omega([Record.read(tmp_path / "run")])
    assert set(figure.rows) == set(clients)
    north = [name in ("Oslo", "Bergen") for name in figure.rows]
    assert north in ([True, True, False, False], [False, False, True, True])
