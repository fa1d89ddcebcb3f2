"""A SuperLink and three SuperNodes of the tests' own, on loopback: the same models as `local`, also after kills."""

from __future__ import annotations

import os
import signal
import time

import pytest
from apps import DIGITS, TASKS, Run
from loopback import Loopback

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
pytestmark = pytest.mark.processes


def test_fedcmoo_with_two_exchanges(flower: Loopback) -> None:
    run = Run(flower, DIGITS.format(rounds=2, more='name = "fedcmoo"'))
    run.start()
    assert [line["failures"] for line in run.end()] == [[], []]
    run.same_as_local()


def test_mocha_whose_server_and_then_superlink_was_killed_ends_at_the_same_model(flower: Loopback) -> None:
    """The nodes' dual variables are on their own disks, the server goes back to its last round, and the SuperLink knows
    its nodes again. (A node that was pulling a message when it died tries for 40 s before it asks for another.)"""
    run = Run(flower, TASKS.format(rounds=3))
    run.start()
    run.after_round(1)
    time.sleep(2)  # into the second round
    (server,) = flower.children("superlink", "flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    assert len(run.lines()) < 3
    run.start()
    run.after_round(2)
    flower.kill("superlink")
    flower.superlink()
    run.start()
    assert [line["failures"] for line in run.end()] == [[], [], []]
    run.same_as_local()


OTHERS = {
    "fedavg": DIGITS.format(rounds=2, more='name = "fedavg"'),
    "fsmgda": DIGITS.format(rounds=2, more='name = "fsmgda"'),
    "fedcmoo-1": DIGITS.format(rounds=2, more='name = "fedcmoo"\nexchanges = 1'),
    "mocha": TASKS.format(rounds=2),
    "mfa-rr": DIGITS.format(rounds=2, more='name = "fedavg"\n[schedule]\nname = "mfa-rr"\n[models.a]\n[models.b]'),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_all_others(flower: Loopback, name: str) -> None:
    run = Run(flower, OTHERS[name])
    run.start()
    assert [line["failures"] for line in run.end()] == [[], []]
    run.same_as_local()
