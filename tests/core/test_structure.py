"""Inputs and outputs of any shape: dicts, tuples and nested structures in; tensors, dicts, tuples, dataclasses out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polyfed
from polyfed import Federation, Objective, Problem
from polyfed.core.errors import BadInput
from polyfed.core.structure import arguments, joined, leaves, length, mapped, tensors


@dataclass
class Outputs:
    y: Tensor
    z: Tensor


class Net(nn.Module):
    """One network behind several ways to call it and to return from it."""

    def __init__(self, returns: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.one, self.two, self.returns = nn.Linear(3, 2), nn.Linear(2, 2), returns

    def both(self, a: Tensor, b: Tensor) -> Any:
        h = self.one(a) + self.two(b)
        return self.returns(h, h * h)


class ByName(Net):
    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.both(a, b)


class OneDict(Net):
    def forward(self, x: dict[str, Tensor]) -> Any:
        return self.both(x["a"], x["b"])


class Deep(Net):
    def forward(self, x: dict[str, Any]) -> Any:
        return self.both(x["a"], x["more"][0]["b"])


RETURNS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dict": lambda y, z: {"y": y, "z": z},
    "tuple": lambda y, z: (y, z),
    "dataclass": Outputs,
}
rng = np.random.default_rng(0)
A, B = rng.normal(size=(30, 3)).astype(np.float32), rng.normal(size=(30, 2)).astype(np.float32)
TARGETS = {"y": rng.integers(0, 2, 30), "z": rng.integers(0, 2, 30)}
INPUTS: dict[str, tuple[type[Net], Any]] = {
    "keywords": (ByName, {"a": A, "b": B}),
    "positions": (ByName, (A, B)),
    "one dict": (OneDict, {"a": A, "b": B}),
    "nested": (Deep, {"a": A, "more": ({"b": B},)}),
}


def trained(how: str, returns: str, engine: str, out: Path) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net, x = INPUTS[how]
    made = Problem(net(RETURNS[returns]), [Objective("y", "cross-entropy"), Objective("z", "cross-entropy")])
    f = Federation.from_arrays(x, TARGETS, clients=[np.arange(5), np.arange(5, 30)])
    method = polyfed.FedCMOO(lr=0.1, local_steps=2, batch_size=4)
    return dict(polyfed.train(made, f, method, rounds=2, engine=engine, out=out).model.state_dict())


@pytest.mark.filterwarnings("error::RuntimeWarning")  # `batched` runs all of them together
def test_all_ways_in_and_out_are_the_same_model(tmp_path: Path) -> None:
    expected = trained("keywords", "dict", "local", tmp_path / "expected")
    ways = [(how, "dict") for how in INPUTS] + [("keywords", returns) for returns in RETURNS]
    for i, (how, returns) in enumerate(ways):
        for engine in ("local", "wire", "batched"):
            found = trained(how, returns, engine, tmp_path / f"{i}-{engine}")
            for name, value in found.items():
                torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5, msg=f"{how} {returns} {engine}")


def test_structures_are_walked_in_order() -> None:
    x = tensors({"a": [1.0, 2.0], "b": (np.zeros((2, 3)), [[1], [2]])})
    assert [tuple(t.shape) for t in leaves(x)] == [(2,), (2, 3), (2, 1)]
    assert length(x) == 2
    twice = joined([x, mapped(lambda t: t + 1, x)])
    assert twice["a"].tolist() == [1, 2, 2, 3]
    assert isinstance(tensors([1.0, 2.0]), Tensor)  # a list of numbers is an array


def test_a_module_is_called_as_its_forward_says() -> None:
    x = {"a": torch.zeros(1), "b": torch.zeros(1)}
    assert arguments(ByName(Outputs), x) == ((), x)
    assert arguments(OneDict(Outputs), x) == ((x,), {})
    assert arguments(OneDict(Outputs), (1, 2)) == (((1, 2),), {})


@pytest.mark.parametrize(
    ("x", "says"),
    [
        ({"a": np.zeros((3, 2)), "b": np.zeros((4, 2))}, "need one row per example"),
        ({}, "at least one array"),
        ({1: np.zeros(3)}, "names of the arrays of x should be texts"),
        ({"a": np.array(["text"])}, r"x\['a'\] should be one array of numbers"),
    ],
)
def test_what_is_no_structure_of_rows_is_a_sentence(x: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Federation.from_arrays(x, np.zeros(3), clients=1)


def test_an_output_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    f = Federation.from_arrays({"a": A, "b": B}, TARGETS, clients=3)
    for picks, says in (
        (None, "has no output.*the keys left, right"),
        ("logits", "wants 'logits'.*the keys left, right"),
    ):
        net = ByName(lambda y, z: {"left": y, "right": z})
        made = Problem(net, [Objective("y", "cross-entropy", output=picks)])
        with pytest.raises(BadInput, match=says):
            polyfed.train(made, f, "fedavg", rounds=1, out=tmp_path / "run")


def test_the_callers_module_is_left_as_it_is() -> None:
    """F19: a bf16 base stays bf16, and a module of another type is copied."""
    double = nn.Linear(2, 2).double()
    assert Problem(double, [Objective("y", "squared")]).model.weight.dtype == torch.float32
    assert double.weight.dtype == torch.float64
    base = nn.Sequential(nn.Linear(4, 4).to(torch.bfloat16), nn.Linear(4, 1))
    base[0].requires_grad_(False)
    made = Problem(base, [Objective("y", "squared")])
    assert made.model is base
    assert base[0].weight.dtype == torch.bfloat16
