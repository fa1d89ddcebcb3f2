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
    whys = [failure["why"] for failure in missing]
    said = "no reply within 45 s", "its node left or was too late", "missed too many exchanges"  # whichever is first
    assert all(any(words in why for words in said) for why in whys), whys


@pytest.mark.soak
def test_a_node_restarted_in_a_round_is_the_same_client_with_its_memory(flower: Loopback) -> None:
    """Without a key of its own it has a new one, so that its name must not be bound to the old."""
    run = Run(flower, TASKS.format(rounds=2), bind=False)
    run.start()
    run.after_round(1)
    flower.kill("node-1")
    flower.supernode(1, node(flower, 1))
    failures = [failure for line in run.end() for failure in line["failures"]]
    assert [failure["client"] for failure in failures] in ([], [None])
    assert all("has the name '1' now" in failure["why"] for failure in failures)
    run.same_as_local()
