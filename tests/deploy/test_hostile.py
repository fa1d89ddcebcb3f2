"""A real deployment with hostile nodes: five clients, two of which lie, one who says another's name, one who says none.

The model is that of the honest three, every attack is named in the run, and nobody costs more than a deadline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import DIGITS, Run
from loopback import Loopback, loopback
from lying import answered
from safetensors.numpy import load_file

from polyfed.experiment.building import plan as build_plan
from polyfed.experiment.reading import read
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
pytestmark = pytest.mark.processes

from polyfed.deploy.app import To, client_app  # noqa: E402
from polyfed.deploy.client import Sites  # noqa: E402
from polyfed.deploy.grid import InProcess as Grid  # noqa: E402
from polyfed.deploy.server import federate  # noqa: E402

Attacks = tuple[tuple[str, ...], ...]
SHORT: Attacks = (("crash", "1e30"), ("sketch", "weight"))  # what clients 3 and 4 do in rounds 1, 2, ...
LONG: Attacks = (*SHORT, ("1e30", "crash"), ("weight", "sketch"), ("sketch", "1e30"), ("silence", "crash"))
NAMED = {
    "crash": "should be a whole number", "1e30": "the server's sums could overflow", "weight": "its weight ",
    "sketch": "as long as the cohort's median", "silence": "no reply within",
}  # fmt: skip


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Loopback]:
    with loopback(tmp_path / "flower") as made:
        made.env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.3"  # of eight processes: they are for the nodes' work
        made.superlink()
        yield made


def hostile(flower: Loopback, i: int, plan: str, part: int) -> None:
    """A SuperNode whose Python processes read `lying.py` before anything else."""
    path = flower.folder / "lies"
    path.mkdir(exist_ok=True)
    (path / "sitecustomize.py").write_text("import lying\n")
    own = {"HOSTILE": plan, "HOSTILE_AFTER": str(Path("run/names.json").absolute())}
    env = {**flower.env, "PYTHONPATH": f"{path}:{Path(__file__).parent}", **own}
    flower.supernode(i, f'partition-id={part} keep-warm=0 state="{flower.folder}/state-{i}"', env=env)


def honest_three() -> dict[str, Any]:
    name, settings = read("experiment.toml")
    plan, resolved = build_plan(name, {**settings, "engine": {"name": "local"}, "cohort_never": [3, 4]})
    execute(plan, RunDirectory.create(Path("local"), name, resolved))
    return dict(load_file("local/model.safetensors"))


def experiment(attacks: Attacks) -> str:
    """FedCMOO with sketches, one exchange a round."""
    text = DIGITS.format(rounds=len(attacks), more='name = "fedcmoo"\nexchanges = 1')
    return text.replace("clients = 3", "clients = 5")


def as_if_they_were_not_there(lines: list[dict[str, Any]], attacks: Attacks, model: Path) -> None:
    """Every attack is named, nobody else is, and the model is that of the honest three."""
    for line, both in zip(lines, attacks, strict=True):
        for client, attack in zip((3, 4), both, strict=True):
            why = [f["why"] for f in line["failures"] if f["client"] == client]
            assert any(NAMED[attack] in text for text in why), (attack, line["failures"])
        assert {f["client"] for f in line["failures"]} <= {3, 4, None}
    ours, theirs = load_file(model), honest_three()
    for key in theirs:
        assert np.allclose(ours[key], theirs[key], atol=1e-5), key


def attacked(flower: Loopback, attacks: Attacks, timeout: float) -> None:
    run = Run(flower, experiment(attacks), timeout=timeout)
    for i in range(3):
        config = f'partition-id={i} state="{flower.folder}/state-{i}"'
        flower.connected(i, partial(flower.supernode, i, config))
    for i, own in ((3, 0), (4, 1)):
        flower.connected(i, partial(hostile, flower, i, ",".join(both[own] for both in attacks), i))
    flower.connected(5, partial(hostile, flower, 5, "name:0", 0))
    flower.connected(6, partial(hostile, flower, 6, "endless", 0))
    run.start()
    lines = run.end()
    as_if_they_were_not_there(lines, attacks, run.path / "model.safetensors")
    assert all(line["seconds"] < 2 * timeout + 10 for line in lines)  # an exchange, and the last round's evaluation
    told = [f["why"] for line in lines for f in line["failures"] if f["client"] is None]
    assert any("it says that it is '0'; that name belongs to the key" in why for why in told), told


@pytest.mark.parametrize("turn", [1, -1])
def test_two_of_five_lie_in_process(turn: int) -> None:
    """All attacks but silence, on the Grid that is all in one process."""
    attacks = tuple(both[::turn] for both in LONG if "silence" not in both)
    Path("experiment.toml").write_text(experiment(attacks))
    plans = {3: ",".join(a for a, _ in attacks), 4: ",".join(b for _, b in attacks)}
    config = {"out": str(Path("run").absolute()), "timeout": 30.0}
    nodes = [{"partition-id": i, "state": str(Path(f"state-{i}").absolute())} for i in range(5)]
    sites = [Sites(Path.cwd()) for _ in nodes]

    def answer(context: Any, to: To, message: bytes) -> bytes:
        i = context.node_config["partition-id"]
        plain = partial(sites[i].answer, config, context.node_config, to, message)
        return answered(plans.get(i, ""), to, message, plain)

    federate(Path.cwd(), Grid(client_app(answer), nodes), config)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    as_if_they_were_not_there(lines, attacks, Path("run/model.safetensors"))


def test_two_of_five_lie(five: Loopback) -> None:
    attacked(five, SHORT, timeout=100.0)


@pytest.mark.soak
def test_two_of_five_lie_for_long(five: Loopback) -> None:
    attacked(five, LONG, timeout=60.0)
