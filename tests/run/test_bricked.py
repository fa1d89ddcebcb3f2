"""A model that a client spoiled from within the guard's factor: the run says so, is set back, and finishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from hostile import Says
from polyfed import FedAvg, Federation, Objective, Problem, RunStopped, train
from polyfed.callbacks import BestModel
from polyfed.cli import app
from polyfed.core.validate import boundless
from polyfed.run.directory import RunDirectory, round_of, spaced
from polyfed.run.repair import repair

BEYOND = "gave a usable reply, since the model has left what they can train on"


class Hostile:
    """Six clients of a regression by three layers; client 0 turns its update round and makes it 40 times as long."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(120, 6)).astype(np.float32)
        y = (x[:, 0] + 0.1 * rng.normal(size=120)).astype(np.float32)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.problem = Problem(net, [Objective("y", "squared")])
        self.federation = Federation.from_arrays(x, {"y": y}, clients=6)
        self.factor = -40.0

    def train(self, **more: Any) -> Any:
        method = FedAvg(lr=0.05, local_steps=2, batch_size=8)
        layers = [Says([0], delta=lambda delta: self.factor * delta)]
        every = {"every": 1, "per_client": True} if "callbacks" in more else {"every": 12}
        return train(self.problem, self.federation, method, rounds=12, layers=layers, out="r", evaluate=every, **more)


@pytest.mark.parametrize("engine", ["local", "flower"])
def test_a_spoiled_run_is_set_back_and_finishes_with_honest_clients(engine: str) -> None:
    hostile = Hostile()
    with pytest.raises(RunStopped, match=BEYOND) as stopped:
        hostile.train(engine=engine)
    said = str(stopped.value)
    assert "rounds: clients 0 (in " in said  # first of those who were far
    assert "'polyfed runs repair r --back-to ROUND'" in said
    assert "0 is the beginning" in said
    assert len(said) <= 500  # with how to resume
    hostile.factor = 1.0
    with pytest.raises(RunStopped, match=BEYOND):  # honest clients do not help
        hostile.train(engine=engine, resume=True)
    done = CliRunner().invoke(app, ["runs", "repair", "r", "--back-to", "1", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["round"] <= 1  # where round 1 has no checkpoint any more, the beginning
    result = hostile.train(engine=engine, resume=True)
    assert [line["round"] for line in result.history] == list(range(1, 13))
    assert result.summary["failures"] == 0
    assert result.summary["objectives"]["y"]["loss"] < 10


def test_all_that_is_of_later_rounds_is_set_aside_and_nothing_is_lost() -> None:
    hostile = Hostile()
    hostile.factor = 1.0
    first = hostile.train(callbacks=[BestModel()]).summary
    run = Path("r")
    before = {p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in (".lock", "best.safetensors")}
    rounds = {name: len((run / name).read_bytes().splitlines()) for name in ("metrics.jsonl", "clients.jsonl")}
    assert rounds == {"metrics.jsonl": 12, "clients.jsonl": 12}
    old = RunDirectory(run).saved()[-1:]
    found = repair(run, round_of(old[0]))
    assert found.round == round_of(old[0]) < 12
    assert {"result.json", "model.safetensors", "metrics.jsonl", "clients.jsonl"} <= {*found.aside}
    for name in rounds:
        assert len((run / name).read_bytes().splitlines()) == found.round
    assert RunDirectory(run).saved() == old
    assert before <= {p.read_bytes() for p in run.rglob("*") if p.is_file()}
    again = hostile.train(callbacks=[BestModel()], resume=True).summary
    assert (again["model_sha256"], again["best"]) == (first["model_sha256"], first["best"])  # done again, the same bits


def test_back_to_the_beginning_and_to_rounds_that_are_not_there() -> None:
    hostile = Hostile()
    hostile.factor = 1.0
    first = hostile.train().summary
    for round in ("-1", "13"):
        done = CliRunner().invoke(app, ["runs", "repair", "r", "--back-to", round])
        assert (done.exit_code, "should be from 0 to 12" in done.stderr) == (2, True)
    assert repair(Path("r"), 12).complete  # nothing is newer
    assert not Path("r/damaged").exists()
    found = repair(Path("r"), 0)
    assert (found.round, "from the beginning" in found.sentence()) == (0, True)
    assert hostile.train(resume=True).summary["model_sha256"] == first["model_sha256"]


def test_errors_and_silence_are_no_sign_of_a_spoiled_model() -> None:
    assert boundless("FloatingPointError: 'delta' holds NaN or infinity")
    assert not boundless("no reply within 600 s")
    assert not boundless("its weight 'n' is 3; it should be 2")
    hostile, calls = Hostile(), iter(range(99))

    def fails(delta: torch.Tensor) -> torch.Tensor:
        if next(calls) >= 6:  # from round 2 on
            raise RuntimeError("out of order")
        return delta

    layers = [Says(range(6), delta=fails)]
    with pytest.raises(RunStopped, match=r"out of order.*The run stopped after round 1") as stopped:
        train(hostile.problem, hostile.federation, FedAvg(), rounds=2, layers=layers, out="r")
    assert "--back-to" not in str(stopped.value)


# which checkpoints stay


def test_rounds_to_go_back_to_are_few_and_never_far_beyond_what_is_asked() -> None:
    for newest in range(1, 300):
        kept = spaced(newest)
        assert len(kept) == newest.bit_length()  # 10 after 1,000 rounds, 20 after a million
        assert {newest, newest - 1} - {0} <= {*kept} <= {*spaced(newest - 1), newest}  # none comes back
        for back in range(1, newest // 3):
            assert any(back <= newest - round < 3 * back for round in kept)


@pytest.mark.parametrize("step", [1, 3, 7])
def test_checkpoints_are_kept_by_that_rule_however_often_they_are_made(step: int) -> None:
    directory = RunDirectory.create(Path("r"), "r", {})
    for round in range(1, 100, step):
        directory.save(round, {"x": torch.tensor(round)})
        kept = [round_of(path) for path in directory.saved()]
        assert kept[0] == round
        assert len(kept) <= round.bit_length()
        assert round == 1 or kept[1] == round - step  # should the newest be unreadable
        made = range(1, round + 1, step)
        assert {*kept} == {max(r for r in made if r <= end) for end in spaced(round)}


def test_a_round_that_is_done_again_leaves_one_checkpoint() -> None:
    directory = RunDirectory.create(Path("r"), "r", {})
    for value in range(6):
        directory.save(3, {"x": torch.tensor(value)})
        found = directory.load()
        assert found is not None
        assert (found[0], int(found[1]["x"]), len(directory.saved())) == (3, value, 1)
