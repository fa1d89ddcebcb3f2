"""SuperNodes that are killed in a round: missing, or back with their memory."""

from __future__ import annotations

import pytest
from apps import DIGITS, TASKS, Run, node
from loopback import Loopback

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
pytestmark = pytest.mark.processes


def test_a_node_killed_in_a_round_is_missing_and_the_run_ends(flower: Loopback) -> None:
    run = Run(flower, DIGITS.format(rounds=2, more='name = "fedavg"'), timeout=45.0)
    run.start()
    run.after_round(1)
    flower.kill("node-2")
    try:
        missing = run.end()[1]["failures"]
    finally:
        flower.supernode(2, node(flower, 2))
    assert {failure["client"] for failure in missing} == {2}
    assert all("no reply within 45 s" in f["why"] or "Node Unavailable" in f["why"] for f in missing)


@pytest.mark.soak
def test_a_node_restarted_in_a_round_is_the_same_client_with_its_memory(flower: Loopback) -> None:
    run = Run(flower, TASKS.format(rounds=2))
    run.start()
    run.after_round(1)
    flower.kill("node-1")
    flower.supernode(1, node(flower, 1))
    assert [line["failures"] for line in run.end()] == [[], []]
    run.same_as_local()
