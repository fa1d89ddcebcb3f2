"""The server looks at its own state before it saves it: nothing bricks a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from polyfed import Algorithm, BadInput, FedAvg, FedCMOO, Federation, Layer, Objective, Problem, RunStopped, train
from polyfed.algorithms import State, algorithms
from polyfed.core.door import Door
from polyfed.core.layer import Outgoing, Stage
from small import small_federation, small_problem


class Brick(Layer):
    """From round 3 on, client 2 sends finite updates that overflow what they are added to, or what is trained next."""

    stage: ClassVar[Stage] = "attack"

    def __init__(self, value: float = 3e38) -> None:
        self.value = value

    @property
    def singly(self) -> list[int]:
        return [2]

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        if out.client.id != 2 or out.request.round < 3:
            return out.arrays
        arrays = dict(out.arrays)
        for name in out.named("update", "gradient"):
            arrays[name] = torch.full_like(arrays[name], self.value)
        return arrays


def trained(**settings: Any) -> Any:
    method = settings.pop("method", FedAvg(lr=0.5, local_steps=5, batch_size=8, server_lr=2.0))
    brick = Brick(settings.pop("value", 3e38))
    return train(small_problem(), small_federation(), method, layers=[brick], out="run", **settings)


def rounds_saved() -> list[int]:
    return sorted(int(p.name.split("-")[1]) for p in Path("run/checkpoints").glob("round-*"))


@pytest.mark.parametrize("value", [3e38, 1e30, -3e38])
def test_a_state_that_is_not_finite_is_not_taken_and_the_run_goes_on_with_the_guard(value: float) -> None:
    with pytest.raises(RunStopped, match=r"'x' would be infinite.* after round 3, which is not taken") as stopped:
        trained(rounds=5, guard="off", value=value)
    assert "suspects: clients 2 (" in str(stopped.value)  # the farthest first
    assert "stopped after round 2" in str(stopped.value)
    assert rounds_saved()[-1] == 2
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    for _ in range(2):  # again and again: nothing is worse than before
        with pytest.raises(RunStopped, match="after round 3"):
            trained(rounds=5, guard="off", resume=True, value=value)
    result = trained(rounds=5, guard="on", resume=True, value=value)
    assert [[f["client"] for f in line["failures"]] for line in result.history] == [[], [], [2], [2], [2]]
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())


def test_a_gram_matrix_that_is_not_finite_stops_the_run_with_suspects() -> None:
    method = FedCMOO(lr=0.3, local_steps=3, batch_size=8)
    with pytest.raises(RunStopped, match=r"Round 3 is not taken: A Gram matrix .* suspects: clients 2") as stopped:
        trained(rounds=4, guard="off", method=method)
    assert "Continue with" in str(stopped.value)
    assert len(trained(rounds=4, guard="on", method=method, resume=True).history) == 4


class Remembers(Algorithm):
    """Has infinity in its state from the start, which nobody spoiled."""

    def init(self, problem: Problem) -> State:
        return {**problem.initial(), "best": torch.tensor(float("inf"))}

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, dict[str, Any]]:
        return dict(state), {}


def test_infinity_that_was_there_before_is_the_methods_own() -> None:
    result = train(small_problem(), small_federation(), Remembers(), rounds=2)
    assert [line["round"] for line in result.history] == [1, 2]


def three(method: Algorithm, rounds: int = 4, value: float = 9e13) -> Any:
    """Three clients, who cannot be compared; client 2's replies are as long as anything may be."""
    return train(small_problem(), small_federation(clients=3), method, rounds=rounds, layers=[Brick(value)], out="run")


def test_a_spoiled_round_is_done_again_without_the_client_that_spoiled_it() -> None:
    result = three(FedAvg(lr=0.001, local_steps=2, batch_size=8, server_lr=100.0))
    assert [[f["client"] for f in line["failures"]] for line in result.history] == [[], [], [2], [2]]
    why = result.history[2]["failures"][0]["why"]
    assert "'x' would be infinite, not a number or beyond 1e+15 after round 3; the round is done without it" in why
    assert result.history[2]["cohort"] == [0, 1, 2]
    assert result.history[2]["bytes_up"] > result.history[1]["bytes_up"]  # what was sent in vain was sent
    assert all(bool((p.abs() < 1e3).all()) for p in result.model.parameters())


class Overflows(FedAvg):
    """Cannot go on with an update as long as client 2's, or from some round on with any."""

    tried: ClassVar[list[int]] = []
    ends: ClassVar[int] = 10**9

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, dict[str, Any]]:
        self.tried.append(t)
        after, found = super().round(t, state, fleet)
        if not bool((after["x"].abs() < 1e6).all()):
            raise BadInput("A Gram matrix should be finite.")
        if t >= self.ends:
            after = {**after, "x": after["x"] * float("inf")}
        return after, dict(found)


def test_so_is_one_that_the_method_could_not_finish() -> None:
    result = three(Overflows(lr=0.001, local_steps=2, batch_size=8))
    assert [[f["client"] for f in line["failures"]] for line in result.history] == [[], [], [2], [2]]
    assert "round 3 is not taken" in result.history[2]["failures"][0]["why"]


def test_the_run_stops_where_that_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Overflows, "ends", 2)
    monkeypatch.setattr(Overflows, "tried", [])
    method = Overflows(lr=0.001, local_steps=2, batch_size=8)
    with pytest.raises(RunStopped, match=r"'x' would be infinite.* after round 2, which is not taken.* suspects: "):
        train(small_problem(), small_federation(), method, rounds=4, out="run")
    assert method.tried == [1, 2, 2, 2, 2]
    assert rounds_saved()[-1] == 1
    monkeypatch.setattr(Overflows, "ends", 1)
    with pytest.raises(RunStopped, match="after round 1"):  # and where nobody is left
        train(small_problem(), small_federation(clients=2), method, rounds=4, out="other")


def test_what_nodes_remember_is_as_if_the_client_had_not_answered() -> None:
    """MOCHA's nodes keep their dual variables: those of a round that was done again count once."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    federation = Federation.from_arrays(x, {"left": (x[:, 0] > 0).astype(np.float32)}, clients=3)
    problem = Problem(nn.Linear(5, 1), [Objective("left", "binary")])
    method = algorithms["mocha"](regulariser={"name": "independent", "lam": 1e-3})
    runs = [
        train(problem, federation, method, rounds=5, layers=[Brick(value)], out=f"run-{value}")
        for value in (3e14, float("nan"))  # too much for W, and what is no reply at all
    ]
    for run in runs:
        assert [[f["client"] for f in line["failures"]] for line in run.history] == [[], [], [2], [2], [2]]
    assert runs[0].summary["model_sha256"] == runs[1].summary["model_sha256"]
    assert runs[0].history[-1]["gap"] == runs[1].history[-1]["gap"] < runs[0].history[1]["gap"]
