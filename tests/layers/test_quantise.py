"""Quantised uploads: exact bytes, the right mean, the same model everywhere, and no way around the guard."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from hostile import Says
from polyfed import BadInput, FedAvg, FedCMOO, Mocha, MultiModel, Objective, Problem, Quantise, train, train_many
from polyfed.core.door import Door
from polyfed.core.keys import key
from polyfed.core.layer import Layer, Stage
from polyfed.core.messages import Reply, Request
from polyfed.core.part import Part
from polyfed.core.schema import Field, gradient, losses, update, weight
from polyfed.core.tensorkeys import uniform
from polyfed.data.build import build_data
from polyfed.experiment.building import build_layers, build_problem
from polyfed.experiment.schema import Top
from polyfed.layers.quantise import LEVELS, rounded
from polyfed.testing import open_door
from small import small_federation, small_problem, vector

Bits = Literal[4, 8, 16]
ENGINES: list[Any] = ["local", "wire", {"name": "local", "workers": 2}, "batched", "flower"]
BITS: list[Bits] = [16, 8, 4]


@pytest.fixture(autouse=True)
def _no_fall_back() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*runs client by client", RuntimeWarning)
        yield


def sgd(problem: Problem, **options: Any) -> Request:
    how = {"lr": 0.1, "steps": 2, "batch_size": 4, **options}
    omega = torch.ones(len(problem.names), dtype=problem.dtype)
    return Request("sgd", {**problem.initial(), "omega": omega}, options=how)


def opened(*layers: Layer, engine: str = "local", problem: Problem | None = None) -> Door:
    door = open_door(problem or small_problem(), small_federation(), engine, layers=layers)
    door.begin(1)
    return door


def stacked(door: Door, request: Request) -> dict[str, Tensor]:
    stacks = list(door.ask(range(6), request))
    return {name: torch.cat([s[name] for s in stacks]) for name in stacks[0].arrays}


# bytes


def arrays_of(problem: Problem, bits: Bits) -> dict[str, Tensor]:
    """A reply of 'sgd' as it should travel, from its definition."""
    d, M = problem.dim, len(problem.names)
    codes = {16: torch.bfloat16, 8: torch.uint8, 4: torch.uint8}[bits]
    scale = {} if bits == 16 else {"delta.scale": torch.zeros(())}
    return {
        "delta": torch.zeros(-(-d // 2) if bits == 4 else d, dtype=codes), **scale, "buffers": torch.zeros(0),
        "losses": torch.zeros(M), "heard": torch.zeros(M), "weight": torch.zeros(()),
    }  # fmt: skip


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("engine", "objectives"),
    [*((engine, 1) for engine in ENGINES), ("local", 2)],  # 75 parameters are odd, 102 are even
)
def test_bytes_are_those_of_the_serialised_message(engine: Any, bits: Bits, objectives: int) -> None:
    problem = small_problem(objectives=objectives)
    layers = [Quantise(bits=bits)]
    result = train(problem, small_federation(), FedAvg(), rounds=1, engine=engine, layers=layers, out=None)
    message = Reply(arrays_of(problem, bits)).encode()
    assert result.summary["bytes_up"] == 6 * len(message)


def test_a_row_for_each_objective_has_a_scale_for_each() -> None:
    problem, request = small_problem(), Request("jacobian", small_problem().initial(), options=JACOBIAN)
    for layer, width in ((Quantise(bits=8), 20), (Quantise(bits=4), 10)):
        fields = layer.transported({"S": gradient("M 20", by="heard"), "heard": weight("M"), "losses": losses("M")})
        shapes = {name: f.shape(problem.dims) for name, f in fields.items()}
        assert shapes == {"S": (2, width), "S.scale": (2,), "heard": (2,), "losses": (2,)}
        found, exact = (stacked(opened(*some), request) for some in ([layer], []))
        step = exact["S"].abs().amax(2, keepdim=True) / LEVELS[layer.bits]
        assert ((found["S"] - exact["S"]).abs() <= 1.0001 * step).all()
        assert torch.equal(found["losses"], exact["losses"])
        assert torch.equal(found["heard"], exact["heard"])


JACOBIAN: dict[str, Any] = {"lr": 0.1, "rows": 2, "columns": 102, "compress": {"name": "sketch", "width": 20}}


def test_what_has_no_rows_of_numbers_or_a_form_that_is_checked_travels_as_it_is() -> None:
    kept = {
        "a": update(""), "b": gradient("M"), "G": gradient("M M", form="gram"), "n": update("d", "int32"),
        "losses": losses("M"), "weight": weight(),
    }  # fmt: skip
    assert Quantise(bits=4).transported(kept) == kept
    twice = Quantise(bits=4).transported(Quantise(bits=16).transported({"delta": update("d")}))
    assert twice["delta"].dtype == "bfloat16"


def test_halves_of_an_axis_are_rounded_up() -> None:
    assert Field("M d/2").shape({"M": 3, "d": 7}) == (3, 4)
    assert Field("8/2").shape({}) == (4,)


# the mean


@pytest.mark.parametrize("bits", [8, 4])
def test_the_mean_over_keys_is_the_number_itself(bits: Bits) -> None:
    """A rounding has a variance of at most 1/4 step squared: over 1500 keys the mean is within 5 deviations."""
    v = torch.cat([torch.linspace(-1.0, 1.0, 41), torch.tensor([0.0, 1e-9, 0.3333])]).unsqueeze(0)
    levels, n = LEVELS[bits], 1500
    total = torch.zeros_like(v, dtype=torch.float64)
    for k in range(n):
        codes, scale = rounded(v, uniform(key(k, "test"), v.numel()).unsqueeze(0), levels)
        assert codes.min() >= 1
        assert codes.max() <= 2 * levels + 1
        total += (codes.double() - levels - 1) * scale.double()
    error = (total / n - v.double()) / (1.0 / levels)
    assert error.abs().max() < 5 * 0.5 / n**0.5
    assert total[0, 41] == 0  # nothing stays nothing


def test_roundings_differ_from_client_to_client_and_round_to_round() -> None:
    """The error of a mean of many clients falls: their roundings are not alike."""
    problem, request = small_problem(), sgd(small_problem())
    exact = stacked(opened(), request)["delta"]
    found = stacked(opened(Quantise(bits=4)), request)["delta"]
    errors = (found - exact) / exact.abs().amax(1, keepdim=True) * 7
    assert torch.corrcoef(errors).fill_diagonal_(0).abs().max() < 0.4
    assert errors.mean().abs() < 5 * 0.5 / errors.numel() ** 0.5
    door = opened(Quantise(bits=4), problem=problem)
    first, again = stacked(door, request)["delta"], stacked(door, request)["delta"]
    assert not torch.equal(first, again)  # another exchange of the round


@pytest.mark.parametrize("value", [0.0, 1e-45, 3.0e38])
def test_rows_of_zeros_and_the_smallest_and_largest_numbers(value: float) -> None:
    rows = torch.full((1, 5), value)
    codes, scale = rounded(rows, torch.full((1, 5), 1 - 2**-24), 127)
    back = (codes.float() - 128) * scale
    assert torch.isfinite(back).all()
    assert torch.allclose(back, rows, atol=1e-44)


# everywhere the same


@pytest.mark.parametrize("bits", BITS)
def test_the_same_model_on_every_engine(bits: Bits) -> None:
    """In float64, where a number that `batched` finds a rounding apart is not rounded to another one."""
    found = [
        train(
            small_problem(dtype=torch.float64), small_federation(), FedCMOO(), rounds=2, engine=engine, out=None,
            layers=[Quantise(bits=bits)],
        )
        for engine in ENGINES
    ]  # fmt: skip
    for engine, result in zip(ENGINES, found, strict=True):
        assert result.summary["failures"] == 0
        assert result.summary["bytes_up"] == found[0].summary["bytes_up"]
        tolerance = 1e-12 if engine == "batched" else 0.0
        assert torch.allclose(vector(result), vector(found[0]), rtol=0, atol=tolerance), engine
    plain = train(small_problem(dtype=torch.float64), small_federation(), FedCMOO(), rounds=2, out=None)
    assert not torch.allclose(vector(plain), vector(found[0]), atol=1e-7)


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_sums_are_those_of_what_is_unpacked(engine: str) -> None:
    request, door = sgd(small_problem(), weight="size"), opened(Quantise(bits=8), engine=engine)
    total = door.sum(range(6), request)
    exact = opened(engine=engine).sum(range(6), request)
    step = 20 * stacked(opened(), request)["delta"].abs().amax(1).sum() / 127
    assert 0 < (total["delta"] - exact["delta"]).abs().max() <= step
    assert torch.equal(total["weight"], exact["weight"])
    assert torch.equal(total["losses"], exact["losses"])
    assert set(total.arrays) == set(exact.arrays)


def test_buffers_and_measurements_are_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    problem = Problem(model, [Objective("left", "cross-entropy")])
    request = sgd(problem)
    found, exact = (stacked(opened(*some, problem=problem), request) for some in ([Quantise(bits=4)], []))
    assert torch.equal(found["buffers"], exact["buffers"])
    assert not torch.equal(found["delta"], exact["delta"])
    shared = problem.initial()
    measured = [
        stacked(opened(*some, problem=problem), Request("full-jacobian", shared)) for some in ([Quantise(bits=4)], [])
    ]
    assert torch.equal(measured[0]["H"], measured[1]["H"])


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_many_models(engine: str) -> None:
    given = {"a": (small_problem(0), FedAvg()), "b": (small_problem(1, objectives=1), FedCMOO())}
    models, federations = MultiModel(given, "mfa-rr"), dict.fromkeys(given, small_federation())
    plain, packed = (
        train_many(models, federations, rounds=2, engine=engine, layers=layers, out=None)
        for layers in ([], [Quantise(bits=4)])
    )
    assert packed.summary["bytes_up"] < 0.8 * plain.summary["bytes_up"]
    assert packed.summary["failures"] == 0


@pytest.mark.parametrize("compress", ["rand-svd", "top-k", "random-mask", "client-grams"])
@pytest.mark.parametrize("bits", [8, 4])
def test_compressed_jacobians_are_quantised_on_top(compress: str, bits: Bits) -> None:
    """Lengths by objective are found of what is unpacked; nobody is left out, and the forms hold."""
    method = FedCMOO(compress=compress)
    results = [
        train(small_problem(), small_federation(), method, rounds=2, layers=layers, out=None)
        for layers in ([], [Quantise(bits=bits)])
    ]
    assert results[1].summary["failures"] == 0
    assert results[1].summary["bytes_up"] < results[0].summary["bytes_up"]
    assert torch.allclose(vector(results[0]), vector(results[1]), atol=0.1)


# trust


class Lies(Says):
    """Clients that change what is on its way."""

    stage: ClassVar[Stage] = "transport"


def _set(value: float) -> Any:
    return lambda a: torch.full_like(a, value)


@pytest.mark.parametrize("engine", ["local", "wire", "batched"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_set(1e30), "'delta' has the length .*e[+]3[12]; above 1e[+]15"),
        (_set(1e3), "its update 'delta' is .* times as long as the cohort's median"),
        (_set(float("nan")), "holds NaN or infinity"),
        (lambda a: -a, "'delta.scale' is -.*; it should be from 0"),
    ],
)
def test_a_scale_that_no_honest_client_has_is_dropped_and_named(engine: str, bits: Bits, change: Any, why: str) -> None:
    door = opened(Quantise(bits=bits), Lies([3], **{"delta.scale": change}), engine=engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        total = door.sum(range(6), sgd(small_problem()))
    (failure,) = door.failures
    assert failure[0] == 3
    assert re.search(why, failure[1]), failure[1]
    assert list(total.clients) == [0, 1, 2, 4, 5]


def test_an_objectives_scale_is_compared_by_objective() -> None:
    def right(scale: Tensor) -> Tensor:
        return scale * torch.tensor([1.0, 1e4])

    door = opened(Quantise(bits=8), Lies([2], **{"S.scale": right}))
    door.sum(range(6), Request("jacobian", small_problem().initial(), options=JACOBIAN))
    (failure,) = door.failures
    assert failure[0] == 2
    assert "its gradient 'S' for 'right' is" in failure[1]


def test_codes_of_another_shape_are_refused() -> None:
    door = opened(Quantise(bits=4), Lies([1], delta=lambda a: torch.zeros(99, dtype=torch.uint8)))
    door.sum(range(6), sgd(small_problem()))
    assert door.failures == [(1, "'delta' should be torch.uint8 of shape (51,); found torch.uint8 of shape (99,)")]


# settings and runs


@pytest.mark.parametrize("bits", [0, 2, 3, 32, True, "8"])
def test_other_bits_are_refused(bits: Any) -> None:
    with pytest.raises(BadInput, match="bits"):
        Quantise(bits=bits)
    with pytest.raises(BadInput, match=r"layers\.bits"):
        build_layers(Top(layers=[{"name": "quantise", "bits": bits}]))


def test_methods_whose_clients_remember_their_updates_are_refused() -> None:
    with pytest.raises(BadInput, match="'quantise' rounds updates, and clients of 'mocha' remember theirs"):
        Quantise(bits=8).check({"": Part(small_problem(), small_federation(), Mocha())}, 6)


@pytest.mark.parametrize("engine", ["local", "batched"])
def test_a_resumed_run_is_the_same_to_the_last_bit(engine: str) -> None:
    def go(rounds: int, out: str, resume: bool = False) -> Tensor:
        given = small_problem(), small_federation(), FedCMOO()
        layers = [Quantise(bits=4)]
        return vector(train(*given, rounds=rounds, engine=engine, layers=layers, out=out, resume=resume))

    whole = go(4, "whole")
    go(2, "part")
    Path("part/result.json").unlink()
    assert torch.equal(go(4, "part", resume=True), whole)


def test_two_digits_at_8_bits_is_as_accurate() -> None:
    """A short run: within a point of the unquantised one, in a quarter of the bytes. benchmarks/README.md has all."""
    table = {"name": "two-digits", "clients": 20, "examples": 3000, "partition": "dirichlet", "alpha": 0.3}
    dataset, federation, _ = build_data(table, 0)
    problem, _ = build_problem({"name": "mlp", "hidden": [64]}, dataset, 0)
    method = FedCMOO(lr=0.3, server_lr=1.2, local_steps=10, batch_size=32)
    plain, packed = (
        train(problem, federation, method, rounds=6, cohort=8, evaluate={"every": 6}, layers=layers).summary
        for layers in ([], [Quantise(bits=8)])
    )
    for name in ("left", "right"):
        before, after = (summary["objectives"][name]["accuracy"] for summary in (plain, packed))
        assert before > 0.5
        assert abs(before - after) <= 0.01
    assert packed["bytes_up"] < 0.3 * plain["bytes_up"]
