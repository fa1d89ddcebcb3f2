"""The methods. Each is a dataclass of hyper-parameters with one method, `round`, that reads like its paper."""

from __future__ import annotations

from polyfed.core.algorithm import Algorithm, Diagnostics, State, algorithms

__all__ = ["Algorithm", "Diagnostics", "State", "algorithms"]
