"""Same seed, same model; failures are named and survived; a run that stopped goes on to the same bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from polyfed import Algorithm, BadInput, Faults, FedAvg, Layer, Problem, RunStopped, train
from polyfed.algorithms import State
from polyfed.core.client import RowClient
from polyfed.core.door import Door
from polyfed.core.engine import engines
from polyfed.core.layer import Outgoing
from polyfed.core.messages import Request
from polyfed.core.work import Arrays, work
from small import small_federation, small_problem


def sha(**settings: Any) -> str:
    arguments = {"rounds": 4, "cohort": 3, **settings}
    result = train(small_problem(), small_federation(), FedAvg(lr=0.5, local_steps=5, batch_size=8), **arguments)
    return str(result.summary["model_sha256"])


def test_same_seed_same_model_whatever_the_engine() -> None:
    one = sha()
    assert sha() == one
    assert sha(engine="wire") == one
    assert sha(engine={"name": "local", "workers": 2}) == one
    assert sha(engine={"name": "local", "workers": 3}) == one
    assert sha(seed=1) != one


def test_a_problem_can_be_trained_again_from_its_own_start() -> None:
    problem = small_problem()
    one, two = (train(problem, small_federation(), FedAvg(), rounds=2) for _ in range(2))
    assert one.summary["model_sha256"] == two.summary["model_sha256"]


def test_a_run_directory_has_everything() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=3, cohort=2, out="here")
    lines = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    needed = {"round", "seconds", "bytes_up", "bytes_down", "losses", "metrics", "weights", "cohort", "failures"}
    assert needed <= set(lines[0])
    assert len(lines[0]["cohort"]) == 2
    assert set(lines[0]["metrics"]["left"]) == {"accuracy"}
    saved = load_file("here/model.safetensors")
    for name, value in result.model.state_dict().items():
        assert torch.equal(saved[name], value)
    assert result.summary == json.loads(Path("here/result.json").read_text())
    assert (Path("here/experiment.toml")).is_file()


@dataclass
class Broken(Layer):
    """Some clients' replies go wrong, after the check that they are finite."""

    stage = "guard"
    what: str
    who: tuple[int, ...] = (1, 4)
    mended: ClassVar[bool] = False

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if self.mended or out.client.id not in self.who:
            return out.arrays
        if self.what == "raise":
            raise RuntimeError("the disk is on fire")
        delta = out.arrays["delta"]
        bad = {"nan": delta * float("nan"), "inf": delta / 0, "shape": delta[:-1], "type": delta.double()}
        return {"dleta": delta} if self.what == "name" else {**out.arrays, "delta": bad[self.what]}


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("raise", "the disk is on fire"),
        ("nan", "'delta' holds NaN"),
        ("inf", "'delta' holds NaN or infinity"),
        ("shape", "'delta' should be torch.float32 of shape"),
        ("type", "found torch.float64"),
        ("name", "the reply should hold"),
    ],
)
def test_a_failing_client_is_dropped_counted_and_named(what: str, why: str, engine: str) -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=2, engine=engine, layers=[Broken(what)])
    for line in result.history:
        assert [failure["client"] for failure in line["failures"]] == [1, 4]
        assert why in line["failures"][0]["why"]
    assert result.summary["failures"] == 4


def test_everybody_failing_ends_the_run_with_a_usable_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Broken("raise", tuple(range(6)))
    with pytest.raises(RunStopped, match=r"none of the 6 clients .* the disk is on fire.*after round 0"):
        train(small_problem(), small_federation(), FedAvg(), rounds=3, out="r", layers=[layer])
    monkeypatch.setattr(Broken, "mended", True)
    result = train(small_problem(), small_federation(), FedAvg(), rounds=3, out="r", layers=[layer], resume=True)
    again = train(small_problem(), small_federation(), FedAvg(), rounds=3)
    assert result.summary["model_sha256"] == again.summary["model_sha256"]


def test_a_run_goes_on_only_under_its_own_layers() -> None:
    train(small_problem(), small_federation(), FedAvg(), rounds=1, out="r", layers=[Faults(drop=0.3)])
    with pytest.raises(BadInput, match="was begun with layers"):
        train(small_problem(), small_federation(), FedAvg(), rounds=2, out="r", layers=[Faults(drop=0.5)], resume=True)


def test_resume_goes_on_from_an_unfinished_run_and_forgets_half_a_line() -> None:
    whole = train(small_problem(), small_federation(), FedAvg(), rounds=6)
    train(small_problem(), small_federation(), FedAvg(), rounds=3, out="part")
    with Path("part/metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "secon')
    part = train(small_problem(), small_federation(), FedAvg(), rounds=6, out="part", resume=True)
    assert part.summary["model_sha256"] == whole.summary["model_sha256"]
    assert [line["round"] for line in part.history] == [1, 2, 3, 4, 5, 6]


@work("toy-book", reply={"v": ""}, needs="rows", state=lambda client: {"n": torch.zeros(())})
def book(client: RowClient, request: Request, state: Any) -> Any:
    return {"v": state["n"]}, {"n": state["n"] + 1}


@work("toy-refuse", reply={"v": ""}, needs="rows")
def refuse(client: RowClient, request: Request) -> Arrays:
    raise RuntimeError("not today")


class Bookkeeping(Algorithm):
    """Clients count in a first exchange; a second may fail."""

    fail = True

    def init(self, problem: Problem) -> State:
        return {**problem.initial(), "books": torch.zeros(6)}

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, dict[str, Any]]:
        seen = torch.cat([s["v"] for s in fleet.ask(range(6), Request("toy-book"))])
        assert torch.equal(seen, state["books"])
        if self.fail and t == 4:
            list(fleet.ask(range(6), Request("toy-refuse")))
        return {**state, "books": state["books"] + 1}, {}


def test_a_stop_between_two_exchanges_does_not_part_clients_and_server(engine: str) -> None:
    algorithm = Bookkeeping()
    with pytest.raises(RunStopped, match="not today"):
        train(small_problem(), small_federation(), algorithm, rounds=8, engine=engine, out="r")
    algorithm.fail = False
    train(small_problem(), small_federation(), algorithm, rounds=8, engine=engine, out="r", resume=True)


def test_an_engine_that_cannot_be_started_leaves_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: Any, **__: Any) -> None:
        raise BadInput("There is no cluster.")

    monkeypatch.setitem(engines._things, "nowhere", nowhere)
    with pytest.raises(BadInput, match="no cluster"):
        train(small_problem(), small_federation(), FedAvg(), engine="nowhere", out="r")
    assert not Path("r").exists()
    assert train(small_problem(), small_federation(), FedAvg(), rounds=1, out="r").run == Path("r")
