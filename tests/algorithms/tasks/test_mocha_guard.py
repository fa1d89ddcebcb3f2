"""One node of tied tasks: what it sends is held against the other nodes', and its figures against each other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from hostile import Says, SaysAlways, named
from polyfed import Federation, Objective, Problem, Result, train
from polyfed.algorithms.tasks.mb_sgd import MbSGD
from polyfed.algorithms.tasks.mocha import CoCoA, GlobalModel, LocalModels, MbSDCA, Mocha
from polyfed.algorithms.tasks.regularisers import Clustered, Fixed, Graphical, Independent, Mean, Probabilistic
from polyfed.cli import app
from polyfed.core.messages import Request

M, D, N = 6, 5, 20
TIED: dict[str, Any] = {
    "mean": Mocha(regulariser=Mean()),
    "fixed": Mocha(regulariser=Fixed(omega=(2 * np.eye(M) - np.full((M, M), 0.1)).tolist())),
    "clustered": Mocha(regulariser=Clustered(), omega_every=2),
    "probabilistic": Mocha(regulariser=Probabilistic(), omega_every=2),
    "graphical": Mocha(regulariser=Graphical(), omega_every=2),
    "mean of losses": Mocha(regulariser=Mean(), loss_scale="mean"),
    "cocoa": CoCoA(regulariser=Mean()),
    "mb-sdca": MbSDCA(regulariser=Mean(), batch_size=5),
    "mb-sgd": MbSGD(regulariser=Mean(), batch_size=5),
    "global": GlobalModel(),
    "one task of several nodes": Mocha(regulariser=Independent(), tasks=[0, 0, 1, 1, 2, 2]),
}


def run(method: Any, layers: Any = (), rounds: int = 5, **more: Any) -> Result:
    x = np.random.default_rng(0).normal(size=(M * N, D))
    federation = Federation.from_arrays(x, {"y": (x[:, 0] > 0).astype(np.int64)}, clients=M)
    torch.manual_seed(0)
    problem = Problem(nn.Linear(D, 1), [Objective("y", "binary")], torch.float64)
    return train(problem, federation, method, rounds=rounds, layers=list(layers), **more)


@pytest.mark.parametrize("name", TIED)
def test_one_node_does_not_bend_the_models_of_all(name: str) -> None:
    far = {field: lambda a: a * 0 + 1e9 for field in ("dv", "g")}
    honest, bent = run(TIED[name], rounds=3), run(TIED[name], [Says([0], **far)], rounds=3)
    assert named(honest) == set()
    assert named(bent) == {0}
    assert bent.history[-1]["losses"]["y"] < 3 * honest.history[-1]["losses"]["y"] + 0.1


def test_nor_by_little_in_every_round() -> None:
    """Where v_t is, not only its last step, is what the guard compares."""
    steps = Says([0], dv=lambda a: a + 200.0)  # 30 times the others' v_t
    result = run(TIED["mean"], [steps], rounds=10)
    assert [[f["client"] for f in line["failures"]] for line in result.history[4:]] == [[0]] * 6


def test_a_node_that_is_tied_to_nobody_spoils_only_itself() -> None:
    far = Says([0], dv=lambda a: a * 0 + 1e9)
    run(LocalModels(), out="honest")
    assert named(run(LocalModels(), [far], out="own")) == set()
    one, two = (load_file(f"{out}/model.safetensors")["tasks.W"] for out in ("honest", "own"))
    assert torch.equal(one[1:], two[1:])
    assert not torch.equal(one[0], two[0])


@pytest.mark.parametrize("skew", [1, 100])
def test_honest_nodes_stay_in_whatever_their_sizes(skew: int) -> None:
    """With 1 to 60 rows, and after the Omega step, when most nodes' steps are next to none."""
    words = ["run", "many-tasks", "--json", "--rounds", "12", "--set", f"data.skew={skew}"]
    assert json.loads(CliRunner().invoke(app, words).stdout)["failures"] == 0


def test_what_only_the_server_knows_is_not_sent() -> None:
    known = {"v": torch.ones(3, 2)}
    request = Request("sdca", {"w": torch.ones(2)}, known=known)
    assert request.encode() == Request("sdca", {"w": torch.ones(2)}).encode()
    assert not request.row(0).known


def test_a_node_that_lowers_its_conjugates_is_named_and_ends_nothing() -> None:
    method = Mocha(regulariser=Mean(), stop_gap=1e-3)
    lies = SaysAlways([0], conjugate=lambda a: a - 200)
    result = run(method, [lies])
    assert result.summary["rounds"] == 5
    assert named(result) == {0}
    assert "'conjugate' is lower than" in result.history[0]["failures"][0]["why"]


def test_a_negative_gap_is_none() -> None:
    """Where nodes share a task nobody knows whose figures they are; the run goes on, and says so."""
    lies = SaysAlways([0], conjugate=lambda a: a - 2000)
    result = run(GlobalModel(stop_gap=1e-3), [lies])
    assert result.summary["rounds"] == 5
    assert "stopped" not in result.summary
    assert all(line["gap"] < 0 and "negative" in line["gap_note"] for line in result.history)


def test_a_run_that_ends_on_its_gap_says_so() -> None:
    result = run(Mocha(regulariser=Mean(lam1=0.2, lam2=0.2), loss="squared", epochs=10, stop_gap=1e-3), rounds=300)
    last = result.summary["rounds"]
    assert last < 300
    assert result.summary["stopped"].startswith(f"Stopped after round {last}: the duality gap, ")
    assert named(result) == set()
