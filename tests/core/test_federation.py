"""Clients as stretches of one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from polyfed import Federation, Rows
from polyfed.core.errors import BadInput
from small import small_federation


def test_rows_from_lists_and_stretches_that_wrap() -> None:
    rows = Rows.of([[3, 1], [], [2]])
    assert [rows[i].tolist() for i in range(3)] == [[3, 1], [], [2]]
    around = Rows(np.arange(5), np.array([3, 0]), np.array([4, 2]))
    assert around[0].tolist() == [3, 4, 0, 1]


def test_one_dataset_per_client_with_the_objectives_it_has() -> None:
    x = np.ones((2, 3), dtype=np.float32)
    federation = Federation.from_clients([(x, {"a": [0, 1]}), (x, {"b": [1, 1]}), (x, {"a": [1, 0], "b": [0, 0]})])
    assert federation.matrix(["b", "a"]).tolist() == [[False, True], [True, False], [True, True]]
    assert federation.take(torch.tensor([2])).targets["b"].tolist() == [1]


def test_everybody_holds_what_is_not_said() -> None:
    assert small_federation().matrix(["left", "right"]).all()


def test_a_client_alone_has_its_rows_and_no_others() -> None:
    federation = small_federation()
    alone = federation.alone(2)
    assert len(alone) == 1
    assert len(alone.x) == 20
    assert torch.equal(alone.take(torch.arange(20)).x, federation.take(torch.from_numpy(federation.rows("train", 2))).x)


def test_an_even_split_covers_every_row_once() -> None:
    federation = Federation.from_arrays(np.zeros((23, 1)), np.zeros(23), clients=5)
    assert sorted(np.concatenate([federation.rows("train", c) for c in range(5)])) == list(range(23))
    assert sorted(federation.examples) == [4, 4, 5, 5, 5]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Federation.from_arrays(np.zeros((3, 1)), np.zeros(2), clients=1), "one row per example"),
        (
            lambda: Federation.from_arrays(np.zeros((3, 1)), np.zeros(3), clients=5),
            "at most as many clients as rows",
        ),
        (lambda: Federation.from_arrays(np.zeros((3, 1)), np.zeros(3), clients=[[], []]), "any training example"),
        (lambda: Federation.from_arrays(np.zeros((3, 1)), np.zeros(3), clients=2, holds={"a": [1]}), "one entry per"),
        (lambda: small_federation().rows("valid", 0), "no valid rows"),
    ],
)
def test_impossible_federations_are_sentences(make: Callable[[], object], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make()


def test_clients_can_be_numbered_from_another_number_on() -> None:
    whole = small_federation(holds={"left": [True, True, False, True, True, True]})
    shard = whole.shard(2, 4).shifted(2)
    assert shard.examples.tolist() == [0, 0, *whole.examples[2:4]]
    assert shard.matrix(["left", "right"])[2:].tolist() == [[False, True], [True, True]]
    for client in (2, 3):
        own, theirs = (f.take(torch.from_numpy(f.rows("train", client))) for f in (whole, shard))
        assert torch.equal(own.x, theirs.x)


def test_federations_refuse_rows_that_are_not_there() -> None:
    x = np.zeros((10, 2), dtype=np.float32)
    with pytest.raises(BadInput, match=r"between 0 and 9\. Found 11"):
        Federation.from_arrays(x, np.zeros(10), clients=[[0, 11]], test=(x, np.zeros(10)))
    with pytest.raises(BadInput, match="Test targets should be those of training"):
        Federation.from_arrays(x, {"a": np.zeros(10)}, clients=2, test=(x, {"b": np.zeros(10)}))


def test_numpy_arrays_will_do_and_rows_are_not_printed() -> None:
    x: Any = np.full((6, 2), 12345.0, dtype=np.float32)
    federation = Federation(x, {"left": x[:, 0], "right": x[:, 1]}, Rows.of([[0, 1], [2, 3, 4]]))
    assert torch.equal(federation.x, torch.from_numpy(x))
    assert repr(federation) == "Federation(2 clients, 6 rows, left, right)"


@pytest.mark.parametrize("name", ["output", "target", "mask", "parameters"])
def test_a_column_may_not_be_called_like_what_losses_take_anyway(name: str) -> None:
    with pytest.raises(BadInput, match=f"A column needs a name of its own: .* Found '{name}'; rename it"):
        Federation.from_arrays(torch.ones(4, 2), torch.ones(4), clients=2, columns={name: torch.ones(4)})
