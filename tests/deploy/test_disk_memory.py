"""A client's memory on its disk: one folder a name, and the states that the server's checkpoints may go back to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyfed.client.memory import Job
from polyfed.core.messages import TICKS, Request
from polyfed.deploy.memory import DiskMemory
from polyfed.run.directory import spaced

RUN = "0" * 32


def test_clients_whose_names_look_alike_have_folders_of_their_own() -> None:
    names = ["a_b", "a.b", "a b", "a/b", "..", "__"]
    folders = {DiskMemory.of(Path("disk"), RUN, name).folder for name in names}
    assert len(folders) == len(names)
    assert {folder.parent for folder in folders} == {Path("disk") / RUN}
    assert Path("disk") / RUN / "a_b.0" in folders  # as ever


@pytest.mark.parametrize("back", spaced(40))
def test_states_last_as_long_as_the_checkpoints_that_name_them(back: int) -> None:
    memory = DiskMemory(Path("disk"))
    for round in range(1, 41):
        used = torch.tensor((round - 1) * TICKS if round > 1 else -1)
        request = Request("toy", round=round, folded=used)
        memory.settle(0, request)
        memory.keep(Job(0, request, None), {"x": torch.tensor(round)})
    assert len(list(Path("disk").glob("state.*"))) <= len(spaced(40)) + 2
    state = memory.settle(0, Request("toy", round=back + 1, folded=torch.tensor(back * TICKS)))
    assert state is not None
    assert int(state["x"]) == back
