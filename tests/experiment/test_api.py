"""`polyfed.train` checks what it is given, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from polyfed import BadInput, FedAvg, MultiModel, train, train_many
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


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"algorithm": "nonsense"}, "Unknown algorithm 'nonsense'"),
        ({"algorithm": "fedagv"}, "Did you mean 'fedavg'"),
        ({"algorithm": 3}, "Found int"),
        ({"algorithm": FedAvg}, r"Found the class FedAvg: add \(\)"),
        ({"algorithm": {"lr": 0.1}}, "a table with a name"),
        ({"algorithm": {"name": "fedavg", "lrr": 1}}, r"Unknown key 'algorithm\.lrr'\. Did you mean 'lr'"),
        ({"algorithm": {"name": "fedavg", "lr": "much"}}, r"algorithm\.lr should be a valid number\. Found 'much'"),
        ({"algorithm": {"name": "fedcmoo", "compress": "nope"}}, "Unknown compressor 'nope'"),
        ({"problem": 3}, r"problem should be a polyfed\.Problem"),
        ({"federation": [1]}, r"federation should be a polyfed\.Federation"),
        ({"cohort": [1]}, "cohort should be a whole number of clients"),
        ({"engine": "nope"}, "Unknown engine 'nope'"),
        ({"engine": {"name": "local", "wrk": 1}}, r"Unknown key 'engine\.wrk'"),
        ({"layers": "faults"}, "layers should be a list"),
        ({"callbacks": True}, "callbacks should be a list"),
        ({"evaluate": 3}, "evaluate should be a dict"),
        ({"out": 3}, "out should be the path of a directory"),
    ],
)
def test_wrong_arguments_are_one_sentence(change: dict[str, Any], why: str) -> None:
    given = {"problem": small_problem(), "federation": small_federation(), "algorithm": "fedavg", "rounds": 1, **change}
    with pytest.raises(BadInput, match=why) as found:
        train(**given)
    assert_plain(str(found.value))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"lr": -1.0}, "FedAvg: lr should be greater than 0. Found -1.0."),
        ({"lr": "x"}, "FedAvg: lr should be a valid number. Found 'x'."),
        ({"lr": {"start": 1}}, "FedAvg: The key 'lr.decay' is needed and was not given."),
        ({"lrr": 0.1}, "FedAvg: Unknown key 'lrr'. Did you mean 'lr'?"),
        ({"local_steps": 2.5}, "FedAvg: local_steps should be"),
        ({"optimizer": "sdg"}, "FedAvg: optimizer should be 'sgd', 'adam' or 'adamw'. Found 'sdg'."),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput) as found:
        FedAvg(**settings)
    assert str(found.value).startswith(why)
    assert_plain(str(found.value))


def test_many_models_of_the_wrong_kind() -> None:
    any_: Any = MultiModel
    for models, why in (
        (3, "models should be a dict"),
        ({"a": small_problem()}, "Model 'a' should be a pair"),
        ({"a": (small_problem(), "fedavg")}, "Model 'a' should be a pair"),
        ({}, "at least one model"),
    ):
        with pytest.raises(BadInput, match=why) as found:
            any_(models)
        assert_plain(str(found.value))
    many: Any = MultiModel({"a": (small_problem(), FedAvg())})
    pairs: tuple[tuple[Any, Any, str], ...] = (
        ("mfa-rr", small_federation(), "polyfed.MultiModel"), (many, 3, "polyfed.Federation"),
        (many, {"a": 3}, "polyfed.Federation"), (many, {"b": small_federation()}, "Each model needs a federation"),
    )  # fmt: skip
    for algorithm, federations, why in pairs:
        with pytest.raises(BadInput, match=why):
            train_many(algorithm, federations, rounds=1)


def assert_plain(text: str) -> None:
    """One line, of no library's own words."""
    assert len(text) <= 400
    assert not any(word in text for word in ("\n", "pydantic", "http", "validation error", "type="))
