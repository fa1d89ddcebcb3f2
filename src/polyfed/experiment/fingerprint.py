"""What tells one model and one federation from another, so that a run does not go on with others than its own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.core.errors import BadInput
from polyfed.core.federation import SPLITS, Federation
from polyfed.core.part import Parts
from polyfed.core.problem import Problem
from polyfed.core.settings import Settings
from polyfed.core.source import Source
from polyfed.core.structure import Nested, leaves, mapped

MOST = 1 << 26  # bytes of a target that are looked at
ROWS = 64  # of x, that are looked at
READ = 16  # of x, where rows are read from a source
LOOKED_AT = 4096  # numbers of an array that is not trained
ALIKE = 1e-4  # of their size: what features may differ by, as another machine rounds otherwise


def fingerprint(parts: Parts) -> Settings:
    """The number of clients and rows, checksums of the models' arrays and of who has which labels, and two figures of
    each array of features: a sum of some rows with signs and weights, and their mean size.

    Args:
        parts: the models and their data.
    """
    model, data = hashlib.sha256(), hashlib.sha256()
    for name, part in parts.items():
        model.update(repr((name, _shapes(part.problem))).encode())
        _add(data, part.federation)
    every = [part.federation for part in parts.values()]
    rows = sum(int(federation.examples.sum()) for federation in every)
    sums = {"model": model.hexdigest()[:16], "data": data.hexdigest()[:16]}
    features = [_figures(t) for federation in every for t in leaves(_some_rows(federation))]
    fixed = [_figures(t) for part in parts.values() for t in _fixed(part.problem)]
    return {"clients": len(every[0]), "rows": rows, **sums, "features": features, "fixed": fixed}


def check_fingerprint(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with another model or other clients.

    Args:
        path: the run's directory.
        before: the fingerprint it was begun with; runs of earlier versions have none, or one without features.
        now: that of what it is to go on with.
    """
    if before and before["data"] != now["data"]:
        same = all(before[key] == now[key] for key in ("clients", "rows"))
        found = "as many, and others" if same else f"{now['clients']} clients with {now['rows']} training rows"
        raise BadInput(
            f"{path} is a run over another federation: it has {before['clients']} clients with {before['rows']} "
            f"training rows. Found {found}; give the same data in the same order, or begin a new run."
        )
    if _other_features(before.get("features"), now["features"]):
        raise BadInput(
            f"{path} is a run over other features: its clients have as many rows with the same labels, and other "
            "numbers in x; give the same data, prepared in the same way, or begin a new run."
        )
    if before.get("fixed") and _other_features(before["fixed"], now["fixed"]):
        raise BadInput(
            f"{path} is a run over another base: parameters that are not trained, or constants of the model, have "
            "other values; give the model that it was begun with, made from the same seed, or begin a new run."
        )
    if before and before["model"] != now["model"]:
        raise BadInput(
            f"{path} is a run of another model: its arrays have other names or shapes than those of the "
            "model given here; give the same model, or begin a new run."
        )


# features


def _some_rows(federation: Federation) -> Nested:
    """Rows of x, evenly spread; nothing where a source has them and cannot read them, or reads others each time."""
    x, most = federation.x, READ if federation.streamed else ROWS
    rows = np.unique(np.linspace(0, federation.size - 1, most).astype(np.int64))
    if not isinstance(x, Source):
        index = torch.from_numpy(rows)
        return mapped(lambda t: t[index.to(t.device)], x)
    try:
        first, second = x.read(rows), x.read(rows)
        same = all(torch.equal(a, b) for a, b in zip(leaves(first), leaves(second), strict=True))
    except Exception:  # the user's own code, which a client's turn will tell of
        return ()
    return first if same else ()


def _figures(t: Tensor) -> list[float]:
    """A weighted sum of some numbers, which another order changes, too, and their mean size."""
    real = torch.view_as_real(t) if t.is_complex() else t
    v = real.detach().cpu().double().nan_to_num(0.0, 0.0, 0.0).reshape(-1)
    n = max(1, len(v))
    return [float((v * torch.arange(len(v)).double().cos()).sum()) / math.sqrt(n), float(v.abs().sum()) / n]


def _other_features(before: Any, now: list[list[float]]) -> bool:
    if not before or not now:
        return False
    if len(before) != len(now):
        return True
    pairs = [(a, b, ALIKE * max(one[1], other[1])) for one, other in zip(before, now, strict=True)
             for a, b in zip(one, other, strict=True)]  # fmt: skip
    return not all(math.isclose(a, b, rel_tol=0, abs_tol=room) for a, b, room in pairs)


# models and labels


def _fixed(problem: Problem) -> list[Tensor]:
    """Of what a run does not train: some numbers of each array."""
    arrays = {**dict(problem.model.named_parameters()), **dict(problem.model.named_buffers())}
    moving = {*problem.params, *problem.buffers}
    flat = [t.detach().reshape(-1) for name, t in arrays.items() if name not in moving and t.is_floating_point()]
    return [t[:: max(1, len(t) // LOOKED_AT)] for t in flat if len(t)]


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
