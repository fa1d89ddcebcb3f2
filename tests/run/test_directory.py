"""A run on disk: checkpoints that fall back, and one writer at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyfed import BadInput, FedAvg, train
from polyfed.run.directory import RunDirectory
from small import small_federation, small_problem


def test_an_unreadable_checkpoint_falls_back_to_the_one_before() -> None:
    train(small_problem(), small_federation(), FedAvg(), rounds=3, out="r")
    directory = RunDirectory.open(Path("r"))
    directory.save(8, {"state": {"x": torch.ones(2)}})
    directory.save(9, {"state": {"x": torch.zeros(2)}})
    last = sorted(directory.checkpoints.iterdir())[-1]
    data = bytearray(last.read_bytes())
    data[-1] ^= 1  # one bit, in the middle of a number
    last.write_bytes(data)
    found = directory.load()
    assert found is not None
    assert found[0] == 8
    last.write_bytes(b"")
    found = directory.load()
    assert found is not None
    assert found[0] == 8


def test_two_writers_are_one_too_many() -> None:
    train(small_problem(), small_federation(), FedAvg(), rounds=1, out="r")
    with RunDirectory.open(Path("r")).locked(), pytest.raises(BadInput, match="Another process"):
        train(small_problem(), small_federation(), FedAvg(), rounds=2, out="r", resume=True)
