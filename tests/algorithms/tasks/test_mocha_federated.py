"""MOCHA like any other method: the same model on every engine, resumed, with failing clients, in experiments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from typer.testing import CliRunner

from polyfed import Federation, Objective, Problem, Result, train
from polyfed.algorithms.tasks.mb_sgd import MbSGD
from polyfed.algorithms.tasks.mocha import CoCoA, GlobalModel, LocalModels, MbSDCA, Mocha
from polyfed.algorithms.tasks.regularisers import Clustered, Independent, Mean
from polyfed.cli import app
from polyfed.core.door import layer_fleets
from polyfed.core.errors import BadInput
from polyfed.core.federation import Rows
from polyfed.core.fleet import Around, Ids, PartFleet, Stack
from polyfed.core.layer import Layer, Stage
from polyfed.core.messages import Request
from polyfed.layers.faults import Faults
from polyfed.layers.network import Network, Timed
from polyfed.tasks import MochaEstimator as Estimator
from polyfed.testing import open_door

M, D, N = 5, 4, 20


def arrays(shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(M * N, D)) + shift
    return x, ((x - shift) @ rng.normal(size=D) + 0.5 * rng.normal(size=M * N) > 0).astype(np.int64)


def problem(bias: bool = True) -> Problem:
    torch.manual_seed(0)
    return Problem(nn.Linear(D, 1, bias=bias), [Objective("y", "binary")], torch.float64)


def federation(x: np.ndarray | None = None, y: np.ndarray | None = None) -> Federation:
    own_x, own_y = arrays()
    rows = Rows.of([np.arange(t * N, (t + 1) * N) for t in range(M)])
    return Federation.from_arrays(own_x if x is None else x, {"y": own_y if y is None else y}, clients=rows)


def run(method: Any = None, **settings: Any) -> Result:
    method = method or Mocha(epochs=0.7, omega_every=3, regulariser=Clustered(clusters=2, lam=0.2))
    settings = {"rounds": 8, "problem": problem(), "federation": federation(), **settings}
    return train(settings.pop("problem"), settings.pop("federation"), method, **settings)


METHODS: dict[str, Any] = {
    "mocha": Mocha(
        epochs=0.7, omega_every=3, regulariser=Clustered(clusters=2, lam=0.2), average_from=2, standardise=True
    ),
    "cocoa": CoCoA(theta=0.5, measure_theta=True),
    "mb-sdca": MbSDCA(batch_size=5),
    "mb-sgd": MbSGD(lr=0.001, batch_size=5),
    "local": LocalModels(),
    "global": GlobalModel(),
}


@pytest.mark.parametrize("name", METHODS)
def test_same_model_on_every_engine(name: str) -> None:
    one = run(METHODS[name]).summary["model_sha256"]
    assert run(METHODS[name], engine="wire").summary["model_sha256"] == one
    assert run(METHODS[name], engine={"name": "local", "workers": 2}).summary["model_sha256"] == one


def test_a_run_is_the_estimators_model() -> None:
    """The federation and the estimator solve one problem: the same weights, and the model file has them."""
    result = run(Mocha(regulariser=Mean(lam1=0.2, lam2=0.2), epochs=10, stop_gap=1e-9), rounds=3000, out="run")
    x, y = arrays()
    ours = Estimator(regulariser="mean", lam=0.2, tol=1e-9, max_iter=3000)
    ours.fit([x[t * N : (t + 1) * N] for t in range(M)], [y[t * N : (t + 1) * N] for t in range(M)])
    W = load_file("run/model.safetensors")["tasks.W"]
    assert np.allclose(W, np.column_stack([ours.coef_, ours.intercept_]), atol=1e-4)
    assert len(result.history) < 3000  # it stopped on the gap
    last = result.history[-1]
    assert last["gap"] <= 1e-9 * last["primal"]
    assert last["metrics"]["y"]["accuracy"] > 0.85


def test_standardising_in_a_federation_is_undone_in_the_model() -> None:
    x, y = arrays(shift=5.0)
    scaled = x * [1, 10, 0.1, 3]
    mine = federation(scaled, y)
    method = Mocha(standardise=True, regulariser=Mean(lam1=0.2, lam2=0.2), epochs=10, stop_gap=1e-8)
    run(method, federation=mine, rounds=3000, out="run")
    ours = Estimator(regulariser="mean", lam=0.2, tol=1e-8, max_iter=3000, standardise=True)
    ours.fit([scaled[t * N : (t + 1) * N] for t in range(M)], [y[t * N : (t + 1) * N] for t in range(M)])
    W = load_file("run/model.safetensors")["tasks.W"]
    assert np.allclose(W[:, :-1] * scaled.std(0), ours.coef_ * scaled.std(0), atol=1e-3)


class Lossy(Around):
    """Loses replies after the work was done."""

    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        for stack in self.inner.ask(clients, request):
            lost = [c for c in stack.clients if request.work == "sdca" and (self.clock.round + c) % 3 == 0]
            yield stack.drop(dict.fromkeys(lost, "lost on the way"))


class Losing(Layer):
    stage: ClassVar[Stage] = "transport"

    def fleet(self, inner: PartFleet) -> PartFleet:
        return Lossy(inner)


@pytest.mark.parametrize("layer", [Losing(), Faults(drop=0.5)])
def test_lost_replies_leave_no_dual_variables_behind(layer: Layer, engine: str) -> None:
    """w(alpha) and alpha stay together: the gap still closes."""
    method = Mocha(regulariser=Mean(lam1=0.2, lam2=0.2), loss="smoothed-hinge", epochs=5)
    result = run(method, rounds=160, engine=engine, layers=[layer], evaluate={"every": 20})
    assert result.history[-1]["gap"] < 1e-6
    assert min(line["answered"] for line in result.history) < M


def test_a_small_cohort_is_enough() -> None:
    """Nodes that are not drawn stand still; sigma' counts only those that are."""
    method = Mocha(regulariser=Mean(lam1=0.2, lam2=0.2), loss="smoothed-hinge", epochs=5)
    assert run(method, rounds=300, cohort=2, evaluate={"every": 100}).history[-1]["gap"] < 1e-6


def test_resumed_is_the_same(tmp_path: Path) -> None:
    for engine in ("local", "wire"):
        whole = run(METHODS["mocha"], rounds=9, engine=engine, layers=[Faults(drop=0.3)])
        run(METHODS["mocha"], rounds=4, out=f"part-{engine}", engine=engine, layers=[Faults(drop=0.3)])
        part = run(
            METHODS["mocha"], rounds=9, out=f"part-{engine}", resume=True, engine=engine, layers=[Faults(drop=0.3)]
        )
        assert part.summary["model_sha256"] == whole.summary["model_sha256"]


def test_resuming_a_run_that_stopped_on_its_gap_changes_nothing() -> None:
    method = Mocha(regulariser=Mean(lam1=0.2, lam2=0.2), loss="squared", epochs=10, stop_gap=1e-6)
    done = run(method, rounds=500, out="done")
    Path("done/result.json").unlink()
    again = run(method, rounds=500, out="done", resume=True)
    assert again.summary["model_sha256"] == done.summary["model_sha256"]
    assert len(again.history) == len(done.history) < 500


def test_killed_at_any_moment_it_resumes_to_the_same_bits() -> None:
    command = [sys.executable, "-m", "polyfed", "run", "many-tasks", "--rounds", "150", "--out", "killed"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not (Path("killed/metrics.jsonl").is_file() and Path("killed/metrics.jsonl").read_text().count("\n") > 20):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not Path("killed/result.json").exists()
    done = CliRunner().invoke(app, ["resume", "killed", "--json"])
    whole = CliRunner().invoke(app, ["run", "many-tasks", "--rounds", "150", "--json"])
    assert json.loads(done.stdout)["model_sha256"] == json.loads(whole.stdout)["model_sha256"]


def test_bad_rows_are_one_sentence_before_the_run() -> None:
    x, y = arrays()
    x[3] = np.nan
    with pytest.raises(BadInput, match=r"x should hold finite numbers\. Found nan in row 3, column 0, of client 0"):
        run(federation=federation(x, y))
    x, y = arrays()
    with pytest.raises(BadInput, match=r"should be 0 or 1\. Found 2 in row 0, of client 0"):
        run(federation=federation(x, y + 2))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"problem": Problem(nn.Sequential(nn.Linear(D, 3), nn.Linear(3, 1)), [Objective("y", "binary")])}, "linear"),
        ({"problem": Problem(nn.Linear(D, 2), [Objective("y", "cross-entropy")])}, "model.name = 'linear'"),
        ({"method": Mocha(tasks=[0, 1])}, "a task for each of the 5 clients"),
        ({"method": Mocha(regulariser=Clustered(clusters=9))}, "at most the 5 tasks"),
        ({"layers": [Faults(silent=[7])]}, "numbers below 5"),
        ({"layers": [Faults(drop=[0.5])]}, "one for each of 5 clients"),
    ],
)
def test_what_cannot_be_is_a_sentence(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        run(**settings)


def test_numba_is_imported_by_those_who_need_it() -> None:
    code = (
        "import sys, numpy as np\nfrom torch import nn\nfrom polyfed import *\n"
        "x = np.ones((8, 2), dtype=np.float32); f = Federation.from_arrays(x, {'y': np.zeros(8)}, clients=2)\n"
        "train(Problem(nn.Linear(2, 1), [Objective('y', 'squared')]), f, FedAvg(), rounds=1)\n"
        "assert 'numba' not in sys.modules and 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- experiments, faults and simulated time


def test_the_built_in_experiment_and_its_tables() -> None:
    more = ["--set", "faults.drop=0.2", "--set", "network.name=3g"]
    done = CliRunner().invoke(app, ["run", "many-tasks", "--rounds", "10", "--out", "r", "--json", *more])
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert all(line["simulated_seconds"] > 0.22 for line in lines)
    assert {"primal", "dual", "gap"} <= set(lines[-1])
    text = Path("r/experiment.toml").read_text()
    assert "[faults]" in text
    assert "[network]" in text
    bad = CliRunner().invoke(app, ["run", "many-tasks", "--set", "faults.dorp=0.2"])
    assert bad.exit_code == 2
    assert "Did you mean 'drop'" in bad.stderr
    bad = CliRunner().invoke(app, ["run", "many-tasks", "--set", "faults.silent=[99]", "--out", "nothing"])
    assert bad.exit_code == 2
    assert not Path("nothing").exists()


def test_simulated_time_is_operations_bytes_and_latency() -> None:
    """Two bytes-per-second networks and two clocks: each term is counted once, for the slowest node."""
    base: dict[str, Any] = {"kind": "lte", "clock": 1e15, "down": 1e15, "up": 1e15, "latency": 0.0}

    def seconds(**changed: float) -> list[float]:
        network = Network(**{**base, **changed})
        history = run(Mocha(steps=50, regulariser=Independent()), layers=[network], rounds=2).history
        return [line["simulated_seconds"] for line in history]

    assert seconds(latency=2.0) == pytest.approx([2.0, 2.0])
    assert seconds(clock=1.0) == pytest.approx([4 * (D + 1) * 50] * 2, rel=1e-6)
    line = run(Mocha(steps=50, regulariser=Independent()), rounds=1).history[0]
    assert seconds(up=1.0)[0] == pytest.approx(line["bytes_up"] / M, rel=1e-6)
    assert seconds(down=1.0)[0] == pytest.approx(line["bytes_down"] / M, rel=1e-6)


def test_every_method_can_be_timed() -> None:
    from polyfed import FedAvg

    history = run(
        FedAvg(local_steps=3, batch_size=5), layers=[Network(clock=1.0, latency=0.0, up=1e15, down=1e15)], rounds=1
    ).history
    assert history[0]["simulated_seconds"] == pytest.approx(6 * (D + 1) * 15, rel=1e-6)


def test_networks_are_ordered_as_they_should_be() -> None:
    kinds = [
        run(layers=[Network(kind=name)], rounds=1).history[0]["simulated_seconds"] for name in ("3g", "lte", "wifi")
    ]
    assert kinds[0] > kinds[1] > kinds[2]
    (timed,) = layer_fleets(open_door(problem(), federation(), layers=[Network()]))
    assert isinstance(timed, Timed)


def test_dropouts_have_their_probability() -> None:
    history = run(rounds=200, layers=[Faults(drop=[0.0, 0.2, 0.5, 0.9, 1.0])], evaluate={"every": 200}).history
    assert np.mean([line["answered"] for line in history]) == pytest.approx(1 + 0.8 + 0.5 + 0.1, abs=0.2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("algorithm.tasks=[0, 1]", "a task for each of the 24 clients. Found 2."),
        ("algorithm.regulariser.lam=-1", "algorithm.regulariser.lam should be greater than 0. Found -1."),
        ("algorithm.regulariser.lamb=1", "Unknown key 'algorithm.regulariser.lamb'."),
        ("algorithm.regulariser.name=fixed", "The key 'algorithm.regulariser.omega' is needed"),
        ("algorithm.regulariser.name=clusterd", "Unknown algorithm.regulariser.name 'clusterd'. Did you mean"),
        ("algorithm.regulariser={}", "The key 'algorithm.regulariser.name' is needed and was not given."),
        ("faults.drop=[0.5,2]", "faults.drop.1 should be less than or equal to 1. Found 2."),
        ("algorithm.regulariser=3", "algorithm.regulariser should be a table. Found 3."),
        ("algorithm.regulariser.clusters=25", "clusters should be at most the 24 tasks. Found 25."),
    ],
)
def test_what_cannot_be_is_named_and_leaves_no_run(wrong: str, says: str) -> None:
    done = CliRunner().invoke(app, ["run", "many-tasks", "--set", wrong, "--out", "nothing"])
    assert done.exit_code == 2
    assert says in done.stderr
    assert not Path("nothing").exists()
