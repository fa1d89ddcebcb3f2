"""Races between frameworks: everybody gets the same work, and one that is not here is a sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyfed.core.errors import BadInput
from polyfed.reproduce.papers.yardsticks.contestants import Work, loop, network, polyfed
from polyfed.reproduce.papers.yardsticks.mnist import CLIENTS, EACH, deal
from polyfed.reproduce.papers.yardsticks.race import PFL, race, write_work

HOW = {"network": "logistic", "rounds": 3, "cohort": 4, "batch": 8, "lr": 0.5, "seed": 0, "engine": {"name": "local"}}


def work() -> dict[str, Any]:
    """Four clients of different sizes; the label is the brightest of ten pixels."""
    x = torch.rand(120, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = x.flatten(1)[:, :10].argmax(1)
    return {"x": x[:100], "y": y[:100], "lengths": [10, 20, 30, 40], "test_x": x[100:], "test_y": y[100:]}


@pytest.mark.parametrize("cohort", [4, 2])
def test_polyfed_and_a_plain_loop_do_the_same_work(cohort: int, tmp_path: Path) -> None:
    """On the same cohorts: sizes of clients differ."""
    path = str(tmp_path / "work.pt")
    how = {**HOW, "cohort": cohort, "batch": 100}  # all of a client's rows, so that their order does not matter
    write_work(Path(path), work(), how)
    (_, first), (_, second) = loop(path, 1), polyfed(path, 1)
    start = network("logistic", 0).state_dict()
    for name, value in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name].to(value), value, rtol=1e-4, atol=1e-6)
        assert not torch.equal(value, start[name])
    assert 0 <= Work(path, "cpu").accuracy(first) <= 100


def test_a_contestant_is_a_process_whose_time_is_taken() -> None:
    found = race("loop", work(), HOW)
    assert found["rounds"] == 3
    assert found["values"]["total"] * 1000 > 3 * found["values"]["a_round"] > 0
    assert found["values"]["cpu"] > 0


def test_a_framework_that_is_not_here_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for python in (str(tmp_path / "none"), sys.executable):  # nor is pfl in polyfed's own environment
        monkeypatch.setenv(PFL, python)
        with pytest.raises(BadInput, match=r"pfl-research is not here.*pip install.*POLYFED_PFL"):
            race("pfl", work(), HOW)


def test_a_thousand_clients_have_two_digits_each_and_sizes_by_a_power_law() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    lists = deal(labels, 0)
    sizes = [len(one) for one in lists]
    assert len(lists) == CLIENTS
    assert all({*labels[one].tolist()} == {client % 10, (client + 1) % 10} for client, one in enumerate(lists))
    assert len({*np.concatenate(lists).tolist()}) == sum(sizes) <= len(labels)
    assert 2 * EACH <= min(sizes) < 15
    assert max(sizes) > 200
