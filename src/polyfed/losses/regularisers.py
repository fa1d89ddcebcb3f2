"""Objectives of the parameters alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective


def l2(name: str = "l2", parameters: str = "*") -> Objective:
    """Half the sum of the squares of some parameters: small weights as an objective of its own.

    Args:
        name: the objective's.
        parameters: which, as a pattern of their names: 'body.*'.
    """
    return Objective(name, partial(_half_squares, pattern=parameters), per="batch", takes=("parameters",))


def _half_squares(parameters: Mapping[str, Tensor], *, pattern: str) -> Tensor:
    some = [p for name, p in parameters.items() if fnmatch.fnmatchcase(name, pattern)]
    if not some:
        raise BadInput(f"The regulariser's pattern {pattern!r} should name parameters. Found {', '.join(parameters)}.")
    return 0.5 * torch.stack([p.square().sum() for p in some]).sum()
