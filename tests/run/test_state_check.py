"""The server looks at its own state before it saves it: nothing bricks a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from polyfed import Algorithm, FedAvg, FedCMOO, Layer, Problem, RunStopped, train
from polyfed.algorithms import State
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
