"""For those who write engines, layers and methods: a door to a small federation, and what every engine must hold."""

from __future__ import annotations

from polyfed.testing.doors import open_door, small_federation, small_problem, small_task_part
from polyfed.testing.engines import CASES, Case, check_engine

__all__ = [
    "CASES", "Case", "check_engine", "open_door", "small_federation", "small_problem", "small_task_part",
]  # fmt: skip
