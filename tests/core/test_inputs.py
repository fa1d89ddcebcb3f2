"""What examples look like: arrays by name, written down and read again, and what does not fit them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from polyfed import BadInput, Federation
from polyfed.core.inputs import Inputs, by_path, features_of

NESTED: dict[str, Any] = {
    "ids": torch.zeros(3, 4, dtype=torch.int64),
    "more": (torch.ones(3), {"deep": torch.ones(3, 2)}),
}


def test_nested_arrays_have_names_and_come_back() -> None:
    inputs = Inputs.of(NESTED)
    assert list(inputs.arrays) == ["ids", "more.0", "more.1.deep"]
    again = Inputs.from_table(inputs.table())
    assert again == inputs
    made = again.joined(by_path(NESTED))
    assert list(made) == ["ids", "more"]
    assert isinstance(made["more"], tuple)
    assert made["more"][1]["deep"] is NESTED["more"][1]["deep"]


@pytest.mark.parametrize("table", [{}, {"arrays": {"x": {"shape": ["a"], "type": "float32"}}},
                                   {"arrays": {"x": {"shape": [1], "type": "nn"}}},
                                   {"arrays": {}, "structure": "["}, {"arrays": {}, "structure": '"y"'}])  # fmt: skip
def test_a_record_that_cannot_be_read_is_a_sentence(table: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="says of the inputs cannot be read"):
        Inputs.from_table(table)


def test_numbers_go_into_the_types_of_the_run() -> None:
    inputs = Inputs.of(torch.zeros(1, 2, dtype=torch.uint8))
    assert inputs.checked({"any": np.array([[1.0, 255.0]])})["x"].dtype == torch.uint8
    for wrong, why in (
        (np.array([[1.5, 0.0]]), "without loss"),
        (np.array([[256, 0]]), "without loss"),
        (np.array([[np.nan, 0]]), "without loss"),
        (np.array([["a", "b"]]), "should be numbers"),
        (np.array([[1j, 0]]), "without loss"),
        (np.zeros((2, 3)), r"shape \(2,\), as the run's data had. Found \(3,\)"),
        (np.array(1.0), "one number"),
    ):
        with pytest.raises(BadInput, match=why):
            inputs.checked({"x": wrong})


def test_arrays_that_are_missing_or_of_other_lengths_are_named() -> None:
    inputs = Inputs.of({"left": torch.zeros(1, 2), "right": torch.zeros(1)})
    with pytest.raises(BadInput, match=r"should have the array 'right'. Did you mean 'rigth'"):
        inputs.checked({"left": np.zeros((1, 2)), "rigth": np.zeros(1)})
    with pytest.raises(BadInput, match="one row per example"):
        inputs.checked({"left": np.zeros((2, 2)), "right": np.zeros(1)})


def test_features_are_the_columns_that_inputs_came_from() -> None:
    import pandas

    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "who": [0, 1], "y": [0, 1]})
    assert features_of(["a", "b"]) == {"x": ("a", "b")}
    assert features_of({"m": ["a"], "n": {"o": "b"}}) == {"m": ("a",), "n.o": ("b",)}
    assert features_of(np.zeros((2, 2))) == {}
    made = Federation.from_frame(frame, owner="who", x=["b", "a"], targets=["y"])
    assert dict(made.features) == {"x": ("b", "a")}
    two = Federation.from_frame(frame, owner="who", x={"m": ["a", "b"], "n": "a"}, targets=["y"])
    assert list(two.features) == list(Inputs.of(two.x).arrays)
    assert dict(Federation.from_arrays(frame[["a"]], frame["y"], clients=2).features) == {"x": ("a",)}
    pair = (frame[["a", "b"]], frame["y"])
    assert dict(Federation.from_clients([pair, pair]).features) == {"x": ("a", "b")}
