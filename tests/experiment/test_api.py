"""`polyfed.train` checks what it is given, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from polyfed import BadInput, FedAvg, train
from small import small_federation, small_problem


def test_bad_arguments_leave_nothing() -> None:
    with pytest.raises(BadInput, match="rounds should be greater than or equal to 1"):
        train(small_problem(), small_federation(), FedAvg(), rounds=0, out="x")
    with pytest.raises(BadInput, match="at most the number of clients, 6"):
        train(small_problem(), small_federation(), FedAvg(), cohort=7, out="x")
    assert not Path("x").exists()


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
    rounds: Any = np.int64(1)
    cohort: Any = np.int64(2)
    result = train(small_problem(), small_federation(), FedAvg(), rounds=rounds, cohort=cohort)
    assert len(result.history[0]["cohort"]) == 2


def test_a_run_goes_on_only_with_its_own_settings() -> None:
    train(small_problem(), small_federation(), FedAvg(lr=0.1), rounds=1, out="r")
    with pytest.raises(BadInput, match="was begun with algorithm"):
        train(small_problem(), small_federation(), FedAvg(lr=0.2), rounds=2, out="r", resume=True)


class Half(FedAvg):
    """A method that forgets to return what it logs, or a part of the state."""

    returned: ClassVar[str] = "state"

    def round(self, t: int, state: Any, fleet: Any) -> Any:
        return state if self.returned == "state" else ({"x": state["x"]}, {})


@pytest.mark.parametrize(
    ("returned", "why"), [("state", "Half.round should return the next state and a dict"), ("x", "'buffers' is not in")]
)
def test_a_round_that_returns_something_else_is_a_sentence(
    returned: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Half, "returned", returned)
    with pytest.raises(BadInput, match=why):
        train(small_problem(), small_federation(), Half(), rounds=2, out="x")
    assert not Path("x").exists()


def test_settings_are_given_by_name() -> None:
    positional: Any = FedAvg
    with pytest.raises(BadInput, match="FedAvg: settings are given by name"):
        positional(0.1)
