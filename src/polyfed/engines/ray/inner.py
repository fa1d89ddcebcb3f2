"""How a Ray worker does its clients' work: one after the other, or as another engine of one process does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from polyfed.core.engine import engines
from polyfed.core.errors import BadInput, shown
from polyfed.core.settings import Settings, arguments

TOGETHER = "batched"


def _checked(inner: str | Settings) -> str | Settings:
    settings_of(inner)
    return inner


Inner = Annotated[Literal["local", "batched"] | dict[str, Any], AfterValidator(_checked)]


def settings_of(inner: str | Mapping[str, Any]) -> Settings | None:
    """The settings of a worker's own engine `batched`; None where work is done client by client.

    Args:
        inner: the engine's name, or a table with its name and settings.
    """
    table = {"name": inner} if isinstance(inner, str) else dict(inner)
    name = table.pop("name", None)
    if name not in ("local", TOGETHER):
        raise BadInput(f"engine.inner.name should be 'local' or {TOGETHER!r}. Found {shown(name)}.")
    if name == TOGETHER:
        return arguments(engines[TOGETHER], table, "engine.inner", ("parts", "layers"))[0]
    if table:
        raise BadInput(f"engine.inner = 'local' takes no settings. Found {shown(next(iter(table)))}.")
    return None


def share(gpus: int, workers: int) -> float:
    """The part of a GPU that each worker gets: never more than one, and so much that all of them find room.

    Args:
        gpus: how many there are in the cluster.
        workers: how many workers there are.
    """
    together = -(-workers // gpus) if gpus else 0
    return math.floor(1e4 / together) / 1e4 if together else 0.0  # Ray counts in ten thousandths
