"""Many models in one run: each as if alone, whatever the engine, and whoever fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from polyfed import FedAvg, Federation, MultiModel, Objective, Problem, Result, train, train_many
from polyfed.algorithms import Algorithm, State
from polyfed.algorithms.models.multimodel import MultiModelRound
from polyfed.algorithms.objectives.fair import QFedAvg
from polyfed.algorithms.objectives.fedcmoo import FedCMOO
from polyfed.algorithms.objectives.fmgda import FMGDA
from polyfed.core.client import RowClient
from polyfed.core.door import Door
from polyfed.core.errors import RunStopped
from polyfed.core.fleet import Around, Ids, Metered, PartFleet, Stack
from polyfed.core.keys import key
from polyfed.core.layer import Layer, Layers, Outgoing, Stage
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.work import Arrays, work
from polyfed.engines.wire import Wire
from polyfed.run.loop import open_doors
from polyfed.run.plan import Plan
from small import small_federation, small_problem

PLAIN = FedAvg(lr=0.5, local_steps=5, batch_size=8)


def three(**settings: Any) -> Result:
    """A method with several exchanges and objectives beside two plain ones, the third with dropout."""
    torch.manual_seed(3)
    dropout = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    models: dict[str, tuple[Problem, Algorithm]] = {
        "many": (small_problem(), FedCMOO(local_steps=3)),
        "one": (small_problem(1, 1), PLAIN),
        "drop": (Problem(dropout, [Objective("middle", "cross-entropy")]), PLAIN),
    }
    schedule = settings.pop("schedule", "mfa-rr")
    return train_many(MultiModel(models, schedule), small_federation(), **{"rounds": 4, "cohort": 5, **settings})


@pytest.mark.parametrize("schedule", ["mfa-rr", "mfa-rand"])
@pytest.mark.parametrize(
    "method", [PLAIN, FedCMOO(gram="two-sets"), QFedAvg(), FMGDA()], ids=lambda m: type(m).__name__
)
def test_one_model_is_the_single_model_run_bit_for_bit(method: Algorithm, schedule: str, engine: str) -> None:
    settings: dict[str, Any] = {"rounds": 3, "cohort": 3, "engine": engine, "seed": 5}
    federation = small_federation()
    alone = train(small_problem(), federation, method, **settings)
    models = train_many(MultiModel({"it": (small_problem(), method)}, schedule), federation, **settings)
    for name, value in alone.model.state_dict().items():
        assert torch.equal(models.model.state_dict()[f"it.{name}"], value)
    for one, other in zip(alone.history, models.history, strict=True):
        assert one["cohort"] == other["cohort"]
        assert {f"it/{name}": loss for name, loss in one["losses"].items()} == other["losses"]
        assert {f"it/{name}": weight for name, weight in one["weights"].items()} == other["weights"]


def test_same_seed_same_models_whatever_the_engine() -> None:
    one = three().summary["model_sha256"]
    assert three(engine="wire").summary["model_sha256"] == one
    assert three(engine={"name": "local", "workers": 2}).summary["model_sha256"] == one
    assert three(engine={"name": "local", "workers": 3}).summary["model_sha256"] == one
    assert three(seed=1).summary["model_sha256"] != one
    assert three(schedule="mfa-rand").summary["model_sha256"] != one


def test_more_models_than_workers_share_them() -> None:
    def sha(workers: int) -> str:
        many = MultiModel({f"m{j}": (small_problem(j), PLAIN) for j in range(6)}, "mfa-rand")
        engine = {"name": "local", "workers": workers}
        return str(train_many(many, small_federation(clients=12), rounds=15, engine=engine).summary["model_sha256"])

    assert sha(2) == sha(1)


def test_metrics_and_files_are_per_model_and_objective() -> None:
    result = three(out="here", evaluate={"clients": True, "stationarity": 2, "improved": True})
    lines = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
    names = {"many/left", "many/right", "one/left", "drop/middle"}
    for line in lines:
        assert set(line["losses"]) == set(line["metrics"]) == set(line["weights"]) == set(line["clients"]) == names
        assert set(line["groups"]) == set(line["passed_over"]) == set(line["improved"]) == {"many", "one", "drop"}
        assert sorted(c for group in line["groups"].values() for c in group) == sorted(line["cohort"])
    assert set(lines[1]["stationarity"]) == {"many", "one", "drop"}
    assert set(result.summary["objectives"]) == names
    assert result.summary["algorithm"] == "mfa-rr"
    saved = load_file("here/model.safetensors")
    assert {name.split(".")[0] for name in saved} == {"many", "one", "drop"}
    for name, value in result.model.state_dict().items():
        assert torch.equal(saved[name], value)


def test_one_module_for_two_models_is_two_models() -> None:
    problem = small_problem()
    result = train_many(MultiModel({"a": (problem, PLAIN), "b": (problem, PLAIN)}), small_federation(), rounds=2)
    weights = result.model.state_dict()
    assert any(not torch.equal(weights[f"a{n}"], weights[f"b{n}"]) for n in (k[1:] for k in weights if k[0] == "a"))


# -- the models' exchanges go out together


def test_all_models_exchanges_are_on_their_way_at_once() -> None:
    meet = threading.Barrier(3, timeout=20)

    class Meeting(Around):
        def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
            if request.work == "sgd":
                meet.wait()  # broken unless all three models are asking
            return self.inner.ask(clients, request)

    class Together(Layer):
        stage: ClassVar[Stage] = "transport"

        def fleet(self, inner: PartFleet) -> PartFleet:
            return Meeting(inner)

    models = {name: (small_problem(), PLAIN) for name in "abc"}
    result = train_many(MultiModel(models), small_federation(), rounds=2, layers=[Together()])
    assert result.summary["failures"] == 0


def test_bytes_counted_are_bytes_sent() -> None:
    many = MultiModel({"a": (small_problem(), FedCMOO(local_steps=1)), "bee": (small_problem(1, 1), PLAIN)})
    parts = {m: Part(problem, small_federation(), method) for m, (problem, method) in many.models.items()}
    wire = Wire(parts, Layers())
    meter = Metered(wire)
    plan = Plan(
        name="", title="", engine_name="wire", parts=parts, engine=Wire, rounds=2, seed=0, cohort=6, schedule=many
    )
    doors, pool = open_doors(plan, wire, meter)
    assert pool is not None
    methods = plan.methods()
    states = {m: methods[m].init(part.problem) for m, part in parts.items()}
    together = MultiModelRound(methods, doors, pool)
    for t in (1, 2):
        for door in doors.values():
            door.begin(t)
        states, _, _ = together(t, states)
    together.close()
    assert (meter.up, meter.down) == (wire.up, wire.down)
    assert meter.up > 0


# -- clients without data, clients that fail


def without(who: list[int], **settings: Any) -> Federation:
    federation = small_federation(**settings)
    length = federation.train.length.copy()
    length[who] = 0
    return replace(federation, train=replace(federation.train, length=length))


@pytest.mark.parametrize("schedule", ["mfa-rr", "mfa-rand"])
def test_a_client_without_rows_for_its_model_is_passed_over_and_counted(schedule: str) -> None:
    federations = {"a": small_federation(), "b": without([1, 4])}
    models = {name: (small_problem(), PLAIN) for name in "ab"}
    result = train_many(MultiModel(models, schedule), federations, rounds=8)
    passed = 0
    for line in result.history:
        absent = {1, 4} - set(line["groups"]["a"])  # they were assigned to b
        assert not {1, 4} & set(line["groups"]["b"])
        assert line["passed_over"] == {"a": 0, "b": len(absent)}
        assert set(line["cohort"]) == set(range(6)) - absent
        passed += len(absent)
    assert passed == 8 if schedule == "mfa-rr" else passed > 0  # round robin: each of the two every other round
    assert result.summary["failures"] == 0


def test_a_model_whose_group_has_no_rows_stands_still_for_the_round() -> None:
    federations = {"a": small_federation(clients=4), "b": without([0, 1, 2], clients=4)}
    result = train_many(
        MultiModel({name: (small_problem(), PLAIN) for name in "ab"}), federations, rounds=6,
        evaluate={"improved": True},
    )  # fmt: skip
    idle = [line["idle"] for line in result.history]
    assert idle.count(["b"]) == idle.count([]) == 3  # client 3 is b's every other round
    for before, line in zip(result.history, result.history[1:], strict=False):
        assert (before["losses"]["b/left"] == line["losses"]["b/left"]) == (line["idle"] == ["b"])


class Failing(Layer):
    stage: ClassVar[Stage] = "attack"

    def __init__(self, who: set[int]) -> None:
        self.who = who

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if out.client.id in self.who and out.request.work == "sgd":
            raise RuntimeError("the disk is on fire")
        return out.arrays


def test_failures_name_the_model_and_do_not_stop_the_others(engine: str) -> None:
    models = {name: (small_problem(), PLAIN) for name in "ab"}
    result = train_many(
        MultiModel(models), small_federation(clients=4), rounds=4, engine=engine, layers=[Failing({0, 1})]
    )
    for line in result.history:
        assert [f["client"] for f in line["failures"]] == [c for g in line["groups"].values() for c in g if c < 2]
        for failure in line["failures"]:
            (model,) = (m for m, group in line["groups"].items() if failure["client"] in group)
            assert failure["why"] == f"{model}: RuntimeError: the disk is on fire"
        assert line["idle"] == [m for m, group in line["groups"].items() if set(group) <= {0, 1}]


def test_everybody_failing_ends_the_run_with_a_usable_checkpoint() -> None:
    many = MultiModel({name: (small_problem(), PLAIN) for name in "ab"})
    fire = Failing(set(range(6)))
    with pytest.raises(RunStopped, match="the disk is on fire"):
        train_many(many, small_federation(), rounds=2, out="r", layers=[fire])
    fire.who.clear()  # it is out
    result = train_many(many, small_federation(), rounds=2, out="r", resume=True, layers=[fire])
    again = train_many(many, small_federation(), rounds=2)
    assert result.summary["model_sha256"] == again.summary["model_sha256"]


# -- what clients keep, they keep for each model


@work("toy-deposit", reply={"saved": ""}, needs="rows", state=lambda client: {"total": torch.zeros(())})
def toy_deposit(
    client: RowClient, request: Request, state: Mapping[str, Tensor]
) -> tuple[Arrays, Mapping[str, Tensor]]:
    return {"saved": request["amount"]}, {"total": state["total"] + request["amount"]}


@work("toy-total-of-models", reply={"total": ""}, needs="rows", state=lambda client: {"total": torch.zeros(())})
def toy_total(client: RowClient, request: Request, state: Mapping[str, Tensor]) -> tuple[Arrays, Mapping[str, Tensor]]:
    return {"total": state["total"]}, state


class Lossy(Around):
    def ask(self, clients: Ids, request: Request) -> Iterator[Stack]:
        for stack in self.inner.ask(clients, request):
            lost = [c for c in stack.clients if request.work == "toy-deposit" and key(9, self.clock.round, c) % 3 == 0]
            yield stack.drop(dict.fromkeys(lost, "lost on the way"))


class Losing(Layer):
    stage: ClassVar[Stage] = "transport"

    def fleet(self, inner: PartFleet) -> PartFleet:
        return Lossy(inner)


@dataclass(frozen=True)
class Savings(Algorithm):
    """Every client saves an amount of its model's own; the books are the server's."""

    unit: float

    def init(self, problem: Problem) -> State:
        return {**problem.initial(), "books": torch.zeros(6)}

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Mapping[str, Any]]:
        cohort, books = fleet.cohort(t), state["books"].clone()
        amounts = torch.tensor([self.unit * (t + c) for c in cohort])
        for stack in fleet.ask(cohort, Request("toy-deposit", each={"amount": amounts})):
            books[list(stack.clients)] += stack["saved"]
        return {**state, "books": books}, {"sum": float(books.sum())}

    def measure(self, state: State, fleet: Door) -> dict[str, Any]:
        stacks = fleet.ask(range(6), Request("toy-total-of-models"))
        totals = torch.cat([s["total"] for s in stacks])
        return {"agree": bool(torch.equal(totals, state["books"]))}


def test_client_state_is_kept_for_each_model_and_survives_losses_and_resuming() -> None:
    many = MultiModel({"small": (small_problem(), Savings(1.0)), "large": (small_problem(), Savings(1000.0))})

    def saved(rounds: int, out: str, resume: bool = False) -> Result:
        return train_many(many, small_federation(), rounds=rounds, layers=[Losing()], out=out, resume=resume)

    whole = saved(9, "whole")
    assert all(line["agree"] == {"small": True, "large": True} for line in whole.history)
    assert whole.summary["failures"] > 5
    saved(4, "parts")
    Path("parts/result.json").unlink()
    parts = saved(9, "parts", resume=True)
    assert [line["sum"] for line in parts.history] == [line["sum"] for line in whole.history]
    assert all(line["agree"] == {"small": True, "large": True} for line in parts.history)


def test_models_may_have_data_of_their_own_and_types_of_their_own() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    double = Problem(nn.Linear(4, 1), [Objective("y", "squared")], torch.float64)
    federation = Federation.from_arrays(x, {"y": x[:, :1]}, clients=6, test=(x, {"y": x[:, :1]}))
    many = MultiModel({"a": (small_problem(), PLAIN), "b": (double, FedAvg(lr=0.1, batch_size=0))})
    result = train_many(many, {"a": small_federation(), "b": federation}, rounds=30)
    assert result.summary["objectives"]["b/y"]["loss"] < 1e-3
    assert result.model.state_dict()["b.weight"].dtype == torch.float64
    assert result.model.state_dict()["a.heads.left.weight"].dtype == torch.float32
