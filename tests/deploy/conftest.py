"""A SuperLink and three SuperNodes for the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from apps import node
from loopback import NODES, Loopback, loopback


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("flower")) as made:
        made.superlink()
        for i in range(NODES):
            made.supernode(i, node(made, i))
        yield made
