"""Objectives of the parameters alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core.errors import BadInput, shown
from polyfed.core.problem import Objective


def l2(name: str = "l2", parameters: str = "*") -> Objective:
    """Half the sum of the squares of some parameters: small weights as an objective of its own.

    Args:
        name: the objective's.
        parameters: which, as a pattern of their names: 'body.*'.
    """
    return Objective(name, _HalfSquares(parameters), per="batch", takes=("parameters",))


class _HalfSquares:
    """The names are found once, before a step is compiled: a compiler cannot follow patterns."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._known: dict[str, bool] = {}

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        if any(name not in self._known for name in parameters):
            self._known |= {name: fnmatch.fnmatchcase(name, self._pattern) for name in parameters}
        some = [p for name, p in parameters.items() if self._known[name]]
        if not some:
            found = shown(list(parameters))
            raise BadInput(f"The regulariser's pattern {self._pattern!r} should name parameters. Found {found}.")
        return 0.5 * torch.stack([p.square().sum() for p in some]).sum()
