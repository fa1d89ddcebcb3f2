"""bf16 by `autocast`: outputs are computed in bfloat16; parameters, losses and gradients are float32."""

from __future__ import annotations

import json
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from polyfed import BadInput, FedAvg, FedCMOO, Federation, Objective, Problem, train
from polyfed.cli import app
from polyfed.client.autograd import Autograd
from polyfed.core.problem import Batch
from polyfed.models import Headed
from polyfed.run.plan import apart
from small import small_federation, vector

BF16 = 2.0**-8  # of a number: half the distance to the next one


def problem(autocast: Any = "bf16", loss: Any = "cross-entropy", dtype: torch.dtype = torch.float32) -> Problem:
    torch.manual_seed(0)
    names = "left", "right"
    trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
    model = Headed(trunk, {name: nn.Linear(8, 3) for name in names})
    return Problem(model, [Objective(name, loss, metrics={}) for name in names], dtype, autocast=autocast)


def batch() -> Batch:
    federation = small_federation()
    return federation.take(torch.from_numpy(federation.rows("train", 0)))


def test_gradients_are_close_to_those_of_float32_and_of_its_type() -> None:
    found = []
    for autocast in (False, True):
        given = problem(autocast)
        start = given.initial()
        found.append(Autograd(given).jacobian(start["x"], start["buffers"], batch(), [True, True], train=True))
    (J, losses, _), (K, rounded, _) = found
    assert K.dtype == rounded.dtype == torch.float32
    assert 0 < (J - K).norm() < 4 * BF16 * J.norm()
    assert 0 < (losses - rounded).abs().max() < 4 * BF16 * losses.abs().max()


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_the_module_computes_in_bfloat16_and_a_loss_sees_float32(engine: str) -> None:
    """Under vmap a layer's product is of bfloat16, and its bias, which is float32, makes the sum so."""
    inside: list[torch.dtype] = []
    outside: list[torch.dtype] = []

    def note(module: nn.Module, given: Any, output: Tensor) -> None:
        inside.append(output.dtype)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        outside.append(output.dtype)
        return nn.functional.cross_entropy(output, target, reduction="none")

    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False))
    model[1].register_forward_hook(note)
    given = Problem(model, [Objective("left", loss)], autocast="bf16")
    result = train(given, small_federation(), FedAvg(lr=0.1), rounds=1, engine=engine)
    assert set(inside) == {torch.bfloat16}
    assert set(outside) == {torch.float32}
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("method", [FedAvg(lr=0.5), FedCMOO(lr=0.5)])
def test_engines_agree_to_the_tolerance_of_bfloat16(method: Any) -> None:
    exact = vector(train(problem(False), small_federation(), method, rounds=3))
    found = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*runs client by client", RuntimeWarning)
        for engine in ("local", "wire", "batched"):
            result = train(problem(), small_federation(), method, rounds=3, engine=engine)
            assert result.summary["failures"] == 0
            found[engine] = vector(result)
    assert torch.equal(found["local"], found["wire"])
    moved = (exact - problem().initial()["x"]).norm()
    for x in found.values():
        assert x.dtype == torch.float32
        assert BF16 / 100 * moved < (x - exact).norm() < 4 * BF16 * moved


@pytest.mark.parametrize("width", [4, 40])
@pytest.mark.filterwarnings("error:.*runs client by client:RuntimeWarning")
def test_convolutions_narrow_and_wide(width: int) -> None:
    """Narrow ones are a kernel's on `batched`, which stays in float32."""

    def made(autocast: bool) -> Problem:
        torch.manual_seed(0)
        layers = nn.Conv2d(1, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.Flatten(), nn.Linear(width * 16, 3)
        return Problem(nn.Sequential(*layers), [Objective("y", "cross-entropy")], autocast=autocast)

    x = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    federation = Federation.from_arrays(x, {"y": x[:, 0, 0, :3].argmax(1)}, clients=4)
    exact = vector(train(made(False), federation, FedAvg(lr=0.1), rounds=1))
    moved = (exact - made(False).initial()["x"]).norm()
    for engine in ("local", "batched"):
        found = vector(train(made(True), federation, FedAvg(lr=0.1), rounds=1, engine=engine))
        assert 0 < (found - exact).norm() < 4 * BF16 * moved


@pytest.mark.parametrize("engine", ["local", "batched"])
@pytest.mark.filterwarnings("error:.*runs client by client:RuntimeWarning")
def test_a_frozen_base_in_bfloat16_takes_inputs_of_float32(engine: str) -> None:
    base = nn.Linear(5, 8).to(torch.bfloat16).requires_grad_(False)
    given = Problem(
        nn.Sequential(base, nn.Tanh(), nn.Linear(8, 3)), [Objective("left", "cross-entropy")], autocast=True
    )
    result = train(given, small_federation(), FedAvg(lr=0.5), rounds=2, engine=engine)
    assert result.summary["failures"] == 0
    assert [p.dtype for p in result.model.parameters()] == [torch.bfloat16] * 2 + [torch.float32] * 2


def test_nested_outputs_of_half_precision_come_in_full() -> None:
    given = Problem(nn.Linear(5, 3), [Objective("y", lambda o, t: o[0].sum(1), output=(0, 1))], autocast=True)
    half, count = torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)
    assert [a.dtype for a in given.output(0, (half, count))] == [torch.float32, torch.int64]


def test_the_caller_s_own_autocast_does_not_matter_to_what_is_kept() -> None:
    """Weights change between steps: a cast that torch kept of the first would be of the old ones."""
    alone = vector(train(problem(), small_federation(), FedAvg(lr=0.5, local_steps=4), rounds=2))
    with torch.autocast("cpu", torch.bfloat16):
        inside = vector(train(problem(), small_federation(), FedAvg(lr=0.5, local_steps=4), rounds=2))
    start = problem().initial()["x"]
    assert (alone - inside).norm() < 0.1 * (alone - start).norm()


def test_wrong_values_and_float64_are_refused() -> None:
    with pytest.raises(BadInput, match=r"autocast = 'bf16' goes with the dtype float32\. Found torch\.float64"):
        problem(dtype=torch.float64)
    for wrong in ("fp16", 16, None):
        with pytest.raises(BadInput, match="autocast should be 'bf16', true or false"):
            problem(wrong)


def test_two_models_of_one_module_both_have_it() -> None:
    given = problem()
    assert all(one.autocast for one in apart([("a", given), ("b", given)]).values())


SHORT = ["--rounds", "1", "--set", "data.examples=300", "--set", "data.clients=4", "--set", "cohort=4",
         "--set", "model.hidden=[4]"]  # fmt: skip


def test_it_is_a_setting_that_is_recorded() -> None:
    done = CliRunner().invoke(app, ["run", "two-digits", *SHORT, "--set", "model.autocast=bf16", "--out", "r"])
    assert done.exit_code == 0, done.stderr or done.exception
    table = tomllib.loads(Path("r/experiment.toml").read_text())
    assert table["model"]["autocast"] == "bf16"
    plain = CliRunner().invoke(app, ["run", "two-digits", *SHORT, "--out", "plain"])
    assert plain.exit_code == 0
    losses = [json.loads(Path(run, "result.json").read_text())["objectives"]["left"]["loss"] for run in ("r", "plain")]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_a_setting_that_does_not_go_is_refused_before_anything_is_written() -> None:
    for given in ("model.dtype=float64", "model.autocast=fp16"):
        more = ["--set", "model.autocast=bf16", "--set", given]
        done = CliRunner().invoke(app, ["run", "two-digits", *SHORT, *more, "--out", "never"])
        assert done.exit_code == 2
        assert "autocast" in done.stderr
    assert not Path("never").exists()
