"""One model of a run: what is learned, over which data, by which method. A run has one part, called '', or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfed.core.algorithm import Algorithm
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem


@dataclass(frozen=True)
class Part:
    """A problem, a federation and a method.

    Args:
        problem: the model and its objectives.
        federation: the clients' data.
        algorithm: the method; None where only an engine is wanted.
    """

    problem: Problem
    federation: Federation
    algorithm: Algorithm | None = None


Parts = Mapping[str, Part]  # by name; one model alone is called ''
