"""What a reviewer once broke stays mended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from polyfed import FedAvg, Federation, Objective, Problem, Wrappers, train
from polyfed.algorithms import State
from polyfed.cli import app
from polyfed.core.client import Client, Memory
from polyfed.core.errors import BadInput, RunStopped
from polyfed.core.fleet import Door
from polyfed.core.messages import Request
from polyfed.core.work import Arrays, work, works
from polyfed.engines import engines
from small import small_federation, small_problem

ENGINES: list[Any] = ["local", "wire", {"name": "local", "workers": 2}, {"name": "local", "workers": 3}]


def hashes(make: Any, **kw: Any) -> set[str]:
    return {
        train(
            make(), small_federation(), FedAvg(local_steps=3, batch_size=8), rounds=3, cohort=4, engine=e, **kw
        ).summary["model_sha256"]
        for e in ENGINES
    }


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.dec.weight = self.enc.weight
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dec(torch.tanh(self.enc(x))))


def test_tied_weights_are_trained_and_saved_tied() -> None:
    problem = Problem(Tied(), [Objective("left", "cross-entropy")])
    before = problem.model.enc.weight.clone()
    model = train(problem, small_federation(), FedAvg(), rounds=2).model
    assert not torch.equal(model.enc.weight, before)
    assert torch.equal(model.enc.weight, model.dec.weight)


def test_a_problem_can_be_trained_again_from_its_own_start() -> None:
    problem = small_problem()
    one, two = (train(problem, small_federation(), FedAvg(), rounds=2) for _ in range(2))
    assert one.summary["model_sha256"] == two.summary["model_sha256"]


class Assigned(nn.Module):
    """A running mean that is put in place of the last one, a counter, and a part the user froze."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = nn.Linear(5, 3), nn.Dropout(0.9)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))
        self.drop.eval()

    def forward(self, x: Tensor) -> Tensor:
        out = self.drop(self.body(x))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            self.count = self.count + 1
        return out - self.mean * (self.count > 0)


@pytest.mark.parametrize("kind", [Assigned, lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None))])
def test_buffers_of_any_kind_give_one_model_on_every_engine(kind: Any) -> None:
    def make() -> Problem:
        torch.manual_seed(0)
        return Problem(kind(), [Objective("left", "cross-entropy")])

    assert len(hashes(make)) == 1
    assert hashes(make) == hashes(make, evaluate={"clients": True})
    assert train(make(), small_federation(), FedAvg(), rounds=2).model.state_dict().keys()


def test_a_buffer_that_a_forward_replaces_reaches_the_server() -> None:
    torch.manual_seed(0)
    result = train(Problem(Assigned(), [Objective("left", "cross-entropy")]), small_federation(), FedAvg(), rounds=2)
    assert result.model.mean.abs().sum() > 0


def test_a_row_of_ones_own_wins_over_a_shared_array_of_that_name() -> None:
    problem = small_problem()
    for name, options in (("local", {}), ("local", {"workers": 2}), ("wire", {})):
        engine = engines[name](problem, small_federation(), Wrappers(), **options)
        fleet = Door(engine, problem, seed=0, cohort=3)
        fleet.begin(1)
        list(fleet.ask([0, 1, 2], Request("review-echo", {"v": torch.zeros(())})))
        stacks = fleet.ask([0, 1, 2], Request("review-echo", each={"v": torch.tensor([2.0, 4.0, 6.0])}))
        assert torch.cat([s["v"] for s in stacks]).tolist() == [2, 4, 6]
        engine.close()


@work("review-echo", reply={"v": ""})
def echo(client: Client, request: Request) -> Arrays:
    return {"v": request["v"]}


@work("review-half", reply={"v": ""})
def half(client: Client, request: Request) -> Arrays:
    return {"v": torch.zeros((), dtype=torch.float16) if client.id == 1 else torch.zeros(())}


@work("review-book", reply={"v": ""}, state=lambda client: {"n": torch.zeros(())})
def book(client: Client, request: Request, state: Any) -> Any:
    return {"v": state["n"]}, {"n": state["n"] + 1}


@work("review-refuse", reply={"v": ""})
def refuse(client: Client, request: Request) -> Arrays:
    raise RuntimeError("not today")


def test_a_reply_of_a_type_that_cannot_travel_drops_its_client_only() -> None:
    problem = small_problem()
    for name, options in (("local", {}), ("local", {"workers": 2}), ("wire", {})):
        engine = engines[name](problem, small_federation(), Wrappers(), **options)
        fleet = Door(engine, problem, seed=0, cohort=3)
        fleet.begin(1)
        answered = [c for s in fleet.ask([0, 1, 2], Request("review-half")) for c in s.clients]
        assert answered == [0, 2]
        assert "torch.float16" in fleet.failures[0][1]
        engine.close()


class Bookkeeping:
    """Clients count in a first exchange; a second may fail."""

    fail = True

    def init(self, problem: Problem) -> State:
        return {**problem.initial(), "books": torch.zeros(6)}

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, dict[str, Any]]:
        seen = torch.cat([s["v"] for s in fleet.ask(range(6), Request("review-book"))])
        assert torch.equal(seen, state["books"])
        if self.fail and t == 4:
            list(fleet.ask(range(6), Request("review-refuse")))
        return {**state, "books": state["books"] + 1}, {}


@pytest.mark.parametrize("engine", ["local", "wire"])
def test_a_stop_between_two_exchanges_does_not_part_clients_and_server(engine: str) -> None:
    algorithm = Bookkeeping()
    with pytest.raises(RunStopped, match="not today"):
        train(small_problem(), small_federation(), algorithm, rounds=8, engine=engine, out="r")
    algorithm.fail = False
    train(small_problem(), small_federation(), algorithm, rounds=8, engine=engine, out="r", resume=True)


def test_within_a_round_work_starts_from_what_the_server_used() -> None:
    memory = Memory()

    def ask(round: int, exchange: int, folded: int) -> Any:
        request = Request("review-book", round=round, exchange=exchange, folded=torch.tensor(folded))
        return request, memory.settle(0, request)

    request, state = ask(1, 0, -1)
    assert state is None
    memory.keep(0, request, {"n": torch.tensor(1)})
    request2, state = ask(1, 1, request.tick)
    assert state["n"] == 1
    memory.keep(0, request2, {"n": torch.tensor(2)})
    _, state = ask(2, 0, request.tick)  # the second reply was lost
    assert state["n"] == 1


def test_an_ask_inside_an_ask_and_one_left_early() -> None:
    problem = small_problem()
    engine = engines["local"](problem, small_federation(), Wrappers(), workers=2)
    fleet = Door(engine, problem, seed=0, cohort=3)
    fleet.begin(1)
    request = Request("review-echo", {"v": torch.ones(())})
    for stack in fleet.ask(range(6), request):
        assert [c for s in fleet.ask([1, 2], request) for c in s.clients] == [1, 2]
        if stack.clients[0] == 3:
            break
    assert [c for s in fleet.ask(range(6), request) for c in s.clients] == list(range(6))
    engine.close()


def test_a_network_cannot_make_a_client_import_things() -> None:
    with pytest.raises(BadInput, match="Unknown work"):
        works["shutil:rmtree"]


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    """Whatever they are doing: a large model keeps the pipes busy."""
    marker = f"out-{os.getpid()}-{time.time_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "polyfed", "run", "--out", str(tmp_path / marker), "--set", "engine.workers=2",
         "--set", "model.hidden=[1500, 500]", "--set", "data.examples=500", "--set", "data.clients=10"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    limit = time.monotonic() + 60
    while not (tmp_path / marker / "metrics.jsonl").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    while time.monotonic() < limit and _alive(marker):
        time.sleep(0.1)
    assert not _alive(marker)


def _alive(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 4, 3), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.conv(x).view(len(x), -1))


def test_a_model_that_views_after_a_convolution_is_welcome() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2, 8, 8)).astype(np.float32)
    federation = Federation.from_arrays(x, np.arange(40) % 3, clients=4)
    result = train(Problem(Viewed(), [Objective("y", "cross-entropy")]), federation, FedAvg(batch_size=5), rounds=1)
    assert np.isfinite(result.summary["objectives"]["y"]["loss"])


def test_divergence_is_logged_not_fatal() -> None:
    result = train(small_problem(), small_federation(), FedAvg(lr=1e18, local_steps=1), rounds=1)
    assert "losses" in result.history[0]


def test_two_writers_are_one_too_many() -> None:
    from polyfed.run.directory import RunDirectory

    train(small_problem(), small_federation(), FedAvg(), rounds=1, out="r")
    with RunDirectory.open(Path("r")).locked(), pytest.raises(BadInput, match="Another process"):
        train(small_problem(), small_federation(), FedAvg(), rounds=2, out="r", resume=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cohort": 0}, "cohort should be"),
        ({"cohort": -1}, "cohort should be"),
        ({"cohort": "al"}, "cohort should be"),
        ({"cohort": 1.0}, "a whole number of clients, a fraction below 1, or 'all'"),
        ({"cohort": True}, "cohort should be"),
        ({"rounds": "2"}, "rounds should be a valid integer"),
        ({"rounds": True}, "rounds should be a valid integer"),
        ({"seed": -1}, "seed should be"),
        ({"seed": 2**64}, "seed should be"),
        ({"engine": 3}, "engine should be a name"),
        ({"evaluate": {"every": 0}}, "evaluate.every should be"),
        ({"evaluate": {"evry": 1}}, "Did you mean 'every'"),
    ],
)
def test_the_python_door_checks_too(change: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        train(small_problem(), small_federation(), FedAvg(), **{"rounds": 1, "out": "never", **change})
    assert list(Path().iterdir()) == []


def test_numpy_numbers_are_numbers() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=np.int64(1), cohort=np.int64(2))
    assert len(result.history[0]["cohort"]) == 2


def test_a_run_goes_on_only_with_its_own_settings() -> None:
    train(small_problem(), small_federation(), FedAvg(lr=0.1), rounds=1, out="r")
    with pytest.raises(BadInput, match="was begun with algorithm"):
        train(small_problem(), small_federation(), FedAvg(lr=0.2), rounds=2, out="r", resume=True)


def test_federations_refuse_rows_that_are_not_there() -> None:
    x = np.zeros((10, 2), dtype=np.float32)
    with pytest.raises(BadInput, match=r"between 0 and 9\. Found 11"):
        Federation.from_arrays(x, np.zeros(10), clients=[[0, 11]], test=(x, np.zeros(10)))
    with pytest.raises(BadInput, match="Test targets should be those of training"):
        Federation.from_arrays(x, {"a": np.zeros(10)}, clients=2, test=(x, {"b": np.zeros(10)}))
    with pytest.raises(BadInput, match="Did you mean 'left'"):
        train(small_problem(), small_federation(holds={"lefft": [True] * 6}), FedAvg(), rounds=1)


def test_an_objective_without_an_output_or_a_target_is_named() -> None:
    x = np.zeros((10, 5), dtype=np.float32)
    with pytest.raises(BadInput, match="Objective 'right' has no target"):
        train(small_problem(), Federation.from_arrays(x, {"left": np.zeros(10)}, clients=2), FedAvg(), rounds=1)


def test_sentences_on_the_command_line() -> None:
    run = CliRunner().invoke
    Path("readonly").write_text("a file where a folder should be")
    done = run(app, ["run", "--rounds", "1", "--out", "readonly/run"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr
    Path("flat.toml").write_text('engine = "local"\n')
    assert "engine should be" in run(app, ["run", "flat.toml"]).stderr
    assert run(app, ["run", "flat.toml", "--engine", "wire", "--rounds", "1", "--out", "ok"]).exit_code == 0
    Path("broken").mkdir()
    Path("broken/experiment.toml").write_text("= = =")
    assert "is broken" in run(app, ["resume", "broken"]).stderr
    for wrong in ("rounds=true", 'rounds="3"', "algorithm.lr=true", "cohort=1.0"):
        done = run(app, ["run", "--set", wrong, "--out", "never"])
        assert done.exit_code == 2, wrong


def test_a_run_with_its_own_model_resumes_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own").mkdir()
    Path("own/review_mine.py").write_text(
        "from torch import nn\n\n\ndef model(**settings):\n    return nn.Sequential(nn.Flatten(), nn.Linear(112, 10))\n"
    )
    Path("own/e.toml").write_text(
        "rounds = 2\n[data]\nexamples = 200\nclients = 10\n"
        '[model]\nname = "review_mine:model"\nwidth = 3\n[algorithm]\nname = "fedavg"\n'
    )
    command = [sys.executable, "-m", "polyfed"]
    assert subprocess.run([*command, "run", "own/e.toml", "--out", "run"], capture_output=True).returncode == 0
    Path("run/result.json").unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run([*command, "resume", str(tmp_path / "run")], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
