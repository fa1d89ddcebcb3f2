"""x*, a known optimum that a run is measured against: of a model file, as a tensor or state dict, or the data set's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from polyfed.core.errors import BadInput, cut, shown
from polyfed.core.federation import Federation
from polyfed.core.part import Part, Parts
from polyfed.core.problem import Problem

KNOWN = "known"  # in place of a path: the minimiser that the data set itself knows


def optima(given: Any, parts: Parts) -> dict[str, dict[str, Tensor]]:
    """Each part's x* and its buffers, or a sentence why there is none."""
    source = _read(Path(given)) if isinstance(given, str | Path) and given != KNOWN else given
    try:
        known = isinstance(source, str)
        return {name: _known(part) if known else _given(source, name, part) for name, part in parts.items()}
    except BadInput as error:
        raise BadInput(f"evaluate.optimum: {error}") from error


def row_weights(federation: Federation, objective: str, by: str) -> NDArray[np.float64]:
    """What every row counts in an objective's mean over the clients, each client counting 1 or its examples."""
    weights: NDArray[np.float64] = np.zeros(federation.size)
    (holds,) = federation.matrix([objective]).T
    for client in np.flatnonzero(holds & (federation.examples > 0)):
        n = int(federation.examples[client])
        np.add.at(weights, federation.rows("train", int(client)), 1.0 if by == "size" else 1 / n)
    weights /= weights.sum()
    return weights


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise BadInput(
            f"evaluate.optimum should be {KNOWN!r} or the model.safetensors of a run. Found {shown(str(path))}, which "
            f"cannot be read: {cut(str(error), 100)}."
        ) from error


def _known(part: Part) -> dict[str, Tensor]:
    """The minimiser of the one objective, the clients counting as they do for the method."""
    problem, federation = part.problem, part.federation
    if federation.minimiser is None or len(problem.names) > 1:
        raise BadInput("the data has no minimiser that is known and one point; give the model file of a run.")
    by = str(getattr(part.algorithm, "weighting_by", "uniform"))
    return _vector(torch.from_numpy(federation.minimiser(row_weights(federation, problem.names[0], by))), problem)


def _given(source: Any, name: str, part: Part) -> dict[str, Tensor]:
    """From a state dict, of several models with their names before the weights' own; or x* as one vector."""
    problem = part.problem
    if not isinstance(source, Mapping):
        if name:
            raise BadInput(f"of several models x* is a state dict. Found {type(source).__name__}.")
        try:
            x = torch.as_tensor(source)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"x* should be numbers. Found {shown(source)}.") from error
        return _vector(x, problem)
    before = f"{name}." if name else ""
    weights = [_shaped(source.get(before + key), before + key, p) for key, p in problem.params.items()]
    buffers = [_shaped(source.get(before + key, b), before + key, b) for key, b in problem.buffers.items()]
    flat = {"x": weights, "buffers": buffers}
    return {key: torch.cat([problem.initial()[key][:0], *(a.reshape(-1) for a in of)]) for key, of in flat.items()}


def _shaped(found: Any, name: str, like: Tensor) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != like.shape:
        what = f"the shape {tuple(found.shape)}" if isinstance(found, Tensor) else "none"
        raise BadInput(f"x* is another model's: {name!r} should have the shape {tuple(like.shape)}. Found {what}.")
    return found.detach().to(like.dtype)


def _vector(x: Tensor, problem: Problem) -> dict[str, Tensor]:
    if x.numel() != problem.dim:
        raise BadInput(f"x* should have as many numbers as the model, {problem.dim}. Found {x.numel()}.")
    return {**problem.initial(), "x": x.detach().reshape(-1).to(problem.dtype)}
