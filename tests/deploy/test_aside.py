"""How many rows a client keeps aside: what it says at the start, checked, kept beside the run, and believed later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyfed import Federation, Objective, Problem
from polyfed.core.errors import RunStopped
from polyfed.core.layer import Layers
from polyfed.core.messages import BadMessage
from polyfed.core.part import Part
from polyfed.deploy.roster import MOST, Description, Roster
from polyfed.deploy.site import Site

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")

from polyfed.deploy.app import client_app
from polyfed.deploy.engine import OverGrid
from polyfed.deploy.grid import InProcess
from polyfed.deploy.identity import Entry, Names


def described(**more: Any) -> dict[str, Any]:
    name = torch.tensor(list(b"clinic"), dtype=torch.uint8)
    return {"name": name, "examples": torch.tensor(5), "holds": torch.tensor([True, True]), **more}


def test_a_client_says_how_many_rows_it_keeps_aside() -> None:
    x = np.zeros((8, 3), dtype=np.float32)
    federation = Federation.from_arrays(x, {"y": x[:, 0]}, clients=1, test=0.25)
    problem = Problem(nn.Linear(3, 1), [Objective("y", "squared")])
    said = Site("clinic", problem, federation, Layers()).describe()
    assert Description.of(said.arrays, 1).aside == [0, 2]


@pytest.mark.parametrize(
    "said", [torch.tensor([1]), torch.tensor([1.0, 2.0]), torch.tensor([-1, 2]), torch.tensor([0, MOST + 1])]
)
def test_what_is_no_number_of_rows_is_refused(said: torch.Tensor) -> None:
    with pytest.raises(BadMessage, match="how many rows it keeps for valid and test"):
        Description.of(described(aside=said), 2)


def test_a_roster_keeps_it_and_an_older_one_is_read(tmp_path: Path) -> None:
    both = [Description.of(described(), 2), Description.of(described(aside=torch.tensor([3, 4])), 2)]
    path = tmp_path / "clients.json"
    Roster(both).save(path)
    kept = Roster.load(path)
    assert {split: rows.tolist() for split, rows in kept.aside.items()} == {"valid": [-1, 3], "test": [-1, 4]}
    table = json.loads(path.read_text())
    for client in table["clients"]:
        del client["aside"]
    path.write_text(json.dumps(table))
    assert np.all(Roster.load(path).aside["test"] == -1)


@pytest.mark.parametrize(("allowed", "there"), [(9, 2), (8, 1)])
def test_the_rosters_examples_are_the_most_in_any_split(allowed: int, there: int) -> None:
    """Client 0 has 2 rows to train on and 2 to test on, client 1 has 3 and 9."""
    x = np.zeros((12, 3), dtype=np.float32)
    theirs = [(x[:n], {"y": x[:n, 0]}) for n in (2, 9)]
    federation = Federation.from_arrays(x[:5], {"y": x[:5, 0]}, clients=[[0, 1], [2, 3, 4]], test=theirs)
    problem = Problem(nn.Linear(3, 1), [Objective("y", "squared")])
    sites = [Site(str(i), problem, federation.alone(i), Layers()) for i in range(2)]
    app = client_app(lambda at, to, message: sites[int(at.node_config["partition-id"])].answer(to, message))
    grid = InProcess(app, [{"partition-id": i} for i in range(2)])
    names = Names(roster={str(i): Entry(f"node {i + 1}", allowed) for i in range(2)})
    if there < 2:
        with pytest.raises(RunStopped, match=r"1 of 2 clients .* it has 9 examples; the roster allows 8"):
            OverGrid({"": Part(problem, federation)}, Layers(), grid, names=names, wait=0.2)
    else:
        engine = OverGrid({"": Part(problem, federation)}, Layers(), grid, names=names, wait=5.0)
        assert engine.population[""].rows("test").tolist() == [2, 9]
