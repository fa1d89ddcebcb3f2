"""How good a model is: the same numbers at the server and by asking the clients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyfed import FedAvg, train
from small import small_federation, small_problem


def test_evaluation_by_asking_the_clients_is_the_same_measure() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=1, evaluate={"clients": True})
    spread = result.history[0]["clients"]["left"]["accuracy"]
    assert set(spread) == {"mean", "std", "worst", "worst_5", "worst_10"}
    assert spread["worst"] <= spread["mean"] <= 1
    assert result.history[0]["evaluation_bytes"] > 0
    same = small_federation()
    everybodys = replace(same, server=same.train.order)  # the server tests on the rows that the clients have
    at_server = train(small_problem(), everybodys, FedAvg(), rounds=1).history[0]
    by_asking = train(small_problem(), replace(same, server=None), FedAvg(), rounds=1).history[0]
    for name in ("left", "right"):
        assert by_asking["losses"][name] == pytest.approx(at_server["losses"][name], rel=1e-5)
        assert by_asking["metrics"][name] == pytest.approx(at_server["metrics"][name], rel=1e-5)


def test_evaluation_may_be_rare_but_the_last_round_has_it() -> None:
    result = train(small_problem(), small_federation(), FedAvg(), rounds=5, evaluate={"every": 3})
    assert [("losses" in line) for line in result.history] == [False, False, True, False, True]


def test_divergence_is_logged_not_fatal() -> None:
    result = train(small_problem(), small_federation(), FedAvg(lr=1e18, local_steps=1), rounds=1)
    assert "losses" in result.history[0]
