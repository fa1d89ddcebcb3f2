"""All five engines hold what every engine must, and the check notices one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

from polyfed.core.engine import engines
from polyfed.core.fleet import Ids, Stack
from polyfed.core.messages import Request
from polyfed.engines.local import Local
from polyfed.testing import check_engine
from polyfed.testing.engines import uncovered


@pytest.mark.parametrize(
    ("name", "settings", "exact"),
    [
        ("local", {}, True),
        ("local", {"workers": 2}, True),
        ("wire", {}, True),
        ("flower", {}, True),
        ("batched", {}, False),
    ],
)
def test_every_engine_holds(name: str, settings: dict[str, Any], exact: bool) -> None:
    check_engine(lambda parts, layers: engines[name](parts, layers, **settings), exact=exact)


def test_every_work_is_tried() -> None:
    assert uncovered() == set()


class Backwards(Local):
    """Answers in the wrong order."""

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        return iter(list(super().replies(clients, request))[::-1])


class Forgetful(Local):
    """Loses what clients remember."""

    def tree(self) -> dict[str, Any]:
        return {}


def _weights(stack: Stack) -> dict[str, Tensor]:
    """What a server checks against its own knowledge."""
    return {name: a for name, a in stack.arrays.items() if name in ("weight", "heard", "share", "square", "n")}


class Inexact(Local):
    """Adds what is not there."""

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        for stack in super().replies(clients, request):
            floats = {n: a + 1e-6 if a.is_floating_point() and a.dim() > 1 else a for n, a in stack.arrays.items()}
            yield Stack(stack.clients, {**floats, **_weights(stack)}, stack.failed)


class Unweighed(Local):
    """Does not tell clients that a sum is wanted."""

    def replies(self, clients: Ids, request: Request) -> Iterator[Stack]:
        from dataclasses import replace

        return super().replies(clients, replace(request, weighed=False))


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (Backwards, "in the order"),
        (Forgetful, "as if never stopped"),
        (Inexact, "is off by"),
        (Unweighed, "times their weights"),
    ],
)
def test_the_check_notices(engine: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_engine(engine)
