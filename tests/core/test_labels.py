"""Rows that no run should be begun with: all of them are looked at, and the sentence says where the first one is."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyfed import BadInput, FedAvg, Federation, Objective, Problem, train
from polyfed.experiment.building import plan
from polyfed.run.plan import check_compatible

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)


def problem(loss: Any = "cross-entropy", outputs: int = 3, **more: Any) -> Problem:
    return Problem(nn.Linear(4, outputs), [Objective("y", loss, **more)])


def federation(y: Any, x: Any = X, **more: Any) -> Federation:
    return Federation.from_arrays(x, {"y": y}, clients=[np.arange(12 * i, 12 * i + 12) for i in range(5)], **more)


def with_one(value: float, place: int = 40, dtype: type = np.float32) -> np.ndarray[Any, Any]:
    y: np.ndarray[Any, Any] = np.zeros(60, dtype=dtype)
    y[place] = value
    return y


@pytest.mark.parametrize(
    ("loss", "outputs", "y", "says"),
    [
        ("cross-entropy", 3, with_one(0.7), "class numbers 0 to 2, as the model has 3 outputs. Found 0.7 in row 40"),
        ("cross-entropy", 3, with_one(-1, dtype=int), "Found -1 in row 40"),
        ("cross-entropy", 3, with_one(3, dtype=int), "Found 3 in row 40"),
        ("cross-entropy-of-sigmoid", 3, with_one(9, dtype=int), "Found 9 in row 40"),
        ("binary", 1, np.where(np.arange(60) % 2, 1, -1), "Found -1 in row 0, of client 0; of labels -1 and 1 make"),
        ("binary", 1, np.where(np.arange(60) % 2, 1.0, np.where(np.arange(60) % 4, -1, np.nan)), "make (y + 1) / 2"),
        ("binary", 1, with_one(2), "Found 2 in row 40"),
        ("squared", 1, with_one(np.inf), "should be finite numbers. Found inf in row 40"),
    ],
)  # fmt: skip
def test_labels_that_the_loss_does_not_know(loss: str, outputs: int, y: Any, says: str) -> None:
    with pytest.raises(BadInput) as found:
        train(problem(loss, outputs), federation(y), FedAvg(), rounds=1, out="r")
    assert says in str(found.value)
    assert len(str(found.value)) <= 400
    assert not Path("r").exists()


def test_one_nan_row_in_one_client() -> None:
    x = X.copy()
    x[47, 2] = np.nan
    with pytest.raises(BadInput, match=r"finite numbers. Found nan in row 47, column 2, of client 3; .*1 of them"):
        train(problem(), federation(np.zeros(60, dtype=int), x), FedAvg(), rounds=1)


@pytest.mark.parametrize("y", [np.zeros(60, dtype=bool), np.zeros(60, dtype=np.uint8), np.zeros(60)])
def test_labels_of_any_type_that_are_whole_numbers(y: Any) -> None:
    check_compatible(problem(), federation(y))
    check_compatible(problem("binary", 1), federation(y))


def test_rows_that_nobody_uses_may_hold_anything() -> None:
    y, x = with_one(-1, 59, int), X.copy()
    x[59] = np.nan
    used = Federation.from_arrays(x, {"y": y}, clients=[[0, 1], [2, 58]])
    check_compatible(problem(), used)
    other = np.zeros(60, dtype=int)
    two = Federation.from_arrays(X, {"y": other, "z": y}, clients=[[0], [59]], holds={"z": [True, False]})
    check_compatible(Problem(nn.Linear(4, 3), [Objective("y", "cross-entropy"), Objective("z", "cross-entropy")]), two)


def test_the_servers_rows_are_looked_at() -> None:
    test = (X[:5], {"y": np.array([0, 1, 2, 3, 0])})
    with pytest.raises(BadInput, match=r"Found 3 in row 3, of the server's test rows"):
        check_compatible(problem(), federation(np.zeros(60, dtype=int), test=test))


def test_a_loss_of_ones_own_knows_its_own_targets() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output[:, 0] - target.nan_to_num()) ** 2

    check_compatible(problem(loss), federation(with_one(np.nan)))


def test_a_million_rows_take_no_time() -> None:
    n = 1_000_000
    big = Federation.from_arrays(np.zeros((n, 4), np.float32), {"y": np.zeros(n, dtype=int)}, clients=100)
    start = time.perf_counter()
    check_compatible(problem(), big)
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    "clients", ["4", True, 4.0, 0, -1, b"4", ["a", "b"], [[0.5, 1.0]], np.arange(60), [[True, False]]]
)
def test_clients_are_a_number_or_lists_of_row_numbers(clients: Any) -> None:
    with pytest.raises(BadInput, match=r"[Cc]lients should be"):
        Federation.from_arrays(X, np.zeros(60), clients=clients)


@pytest.mark.parametrize("x", [np.array(["a", "b"]), [[1, 2], [3]], {"a": 1}, np.array([object()]), None])
def test_rows_are_arrays_of_numbers(x: Any) -> None:
    with pytest.raises(BadInput, match=r"x.* should be one array of numbers"):
        Federation.from_arrays(x, np.zeros(2), clients=1)


# what is said before a run, and what is not looked at


@pytest.mark.parametrize("y", [with_one(-100, dtype=int), with_one(np.nan)])
def test_a_missing_label_is_said_and_not_refused(y: Any) -> None:
    result = train(problem(), federation(y), FedAvg(), rounds=1)
    assert result.summary["rules"] == ["The label 'y' is missing in 1 of 60 rows."]
    assert not result.summary["failures"]


def test_a_client_without_any_label_is_named() -> None:
    y = np.where(np.arange(60) // 12 == 3, np.nan, 1.0)
    owner = np.array(["a", "b", "c", "d", "e"])[np.arange(60) // 12]
    result = train(problem(), Federation.from_arrays(X, {"y": y}, owner=owner), FedAvg(), rounds=1)
    assert result.summary["rules"] == [
        "The label 'y' is missing in 12 of 60 rows.",
        "Without a label for any objective, and so of no use in training: client 'd'.",
    ]


def test_labels_that_nobody_has() -> None:
    with pytest.raises(BadInput, match=r"Some client should have a label for objective 'y'. Found none in 60 rows"):
        train(problem(), federation(np.full(60, np.nan)), FedAvg(), rounds=1)


def test_the_part_of_nested_rows_is_named() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 3)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.line(a + b)
            return out

    b = X.copy()
    b[13, 1] = np.inf
    two = Problem(Two(), [Objective("y", "cross-entropy")])
    with pytest.raises(BadInput, match=r"x\['b'\] should hold .* Found inf in row 13, column 1, of client 1"):
        check_compatible(two, federation(np.zeros(60, int), {"a": X, "b": b}))


def test_the_look_at_every_row_can_be_left_out() -> None:
    x = X.copy()
    x[47, 2] = np.nan
    with pytest.warns(RuntimeWarning, match=r"Client 3 failed in every round in which it was asked, 2 of 2 \("):
        result = train(problem(), federation(np.zeros(60, int), x), FedAvg(), rounds=2, check_rows=False, out="r")
    assert result.summary["never_used"][0].startswith("Client 3 failed in every round")
    assert "check_rows = false" in Path("r/experiment.toml").read_text()


def test_an_experiment_can_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr("polyfed.run.plan.check_rows", lambda *given: looked.append(given))
    settings = {"rounds": 1, "data": {"name": "two-digits", "examples": 50, "clients": 2}, "cohort": 2}
    plan("here", dict(settings))
    assert len(looked) == 1
    made = plan("here", {**settings, "check_rows": False})
    assert len(looked) == 1
    assert made[1]["check_rows"] is False


def test_an_error_in_a_users_forward_keeps_its_traceback() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helped(x)

        def helped(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("no such thing")

    with pytest.raises(BadInput, match=r"cannot be applied to the data: KeyError: 'no such thing'") as found:
        train(Problem(Broken(), [Objective("y", "cross-entropy")]), federation(np.zeros(60, int)), FedAvg(), rounds=1)
    cause = found.value.__cause__
    assert isinstance(cause, KeyError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)][-2:] == ["forward", "helped"]
