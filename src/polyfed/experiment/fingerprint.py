"""What tells one model and one federation from another, so that a run does not go on with others than its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.core.errors import BadInput
from polyfed.core.federation import SPLITS, Federation
from polyfed.core.part import Parts
from polyfed.core.problem import Problem
from polyfed.core.settings import Settings

MOST = 1 << 26  # bytes of a target that are looked at


def fingerprint(parts: Parts) -> Settings:
    """The number of clients and rows, and checksums: of the models' arrays, and of who has which labels.

    Args:
        parts: the models and their data.
    """
    model, data = hashlib.sha256(), hashlib.sha256()
    for name, part in parts.items():
        model.update(repr((name, _shapes(part.problem))).encode())
        _add(data, part.federation)
    every = [part.federation for part in parts.values()]
    rows = sum(int(federation.examples.sum()) for federation in every)
    return {"clients": len(every[0]), "rows": rows, "model": model.hexdigest()[:16], "data": data.hexdigest()[:16]}


def check_fingerprint(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with another model or other clients.

    Args:
        path: the run's directory.
        before: the fingerprint it was begun with; runs of earlier versions have none.
        now: that of what it is to go on with.
    """
    if before and before["data"] != now["data"]:
        same = all(before[key] == now[key] for key in ("clients", "rows"))
        found = "as many, and others" if same else f"{now['clients']} clients with {now['rows']} training rows"
        raise BadInput(
            f"{path} is a run over another federation: it has {before['clients']} clients with {before['rows']} "
            f"training rows. Found {found}; give the same data in the same order, or begin a new run."
        )
    if before and before["model"] != now["model"]:
        raise BadInput(
            f"{path} is a run of another model: its arrays have other names or shapes than those of the "
            "model given here; give the same model, or begin a new run."
        )


def _shapes(problem: Problem) -> list[tuple[str, tuple[int, ...]]]:
    arrays = {**problem.params, **problem.buffers}
    return [(name, tuple(value.shape)) for name, value in arrays.items()]


def _add(found: Any, federation: Federation) -> None:
    """Names, sizes, who holds what, and the labels."""
    found.update(repr([str(name) for name in federation.names]).encode())
    for split in SPLITS:
        rows = getattr(federation, split)
        found.update(split.encode() + (b"" if rows is None else np.ascontiguousarray(rows.length).tobytes()))
    for objective, held in federation.holds.items():
        found.update(objective.encode() + np.ascontiguousarray(held).tobytes())
    for objective, target in federation.targets.items():
        each = max(1, target[:1].numel() * target.element_size())
        found.update(f"{objective} {tuple(target.shape)} {target.dtype}".encode())
        found.update(target[: max(1, MOST // each)].detach().cpu().contiguous().numpy().tobytes())
