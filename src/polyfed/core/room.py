"""Sizes that this machine's memory cannot hold are refused before any of it is taken."""

from __future__ import annotations

import os

from polyfed.core.errors import BadInput

UNKNOWN = 64 * 2**30  # bytes, where the system does not say how many it has


def memory() -> int:
    """The machine's memory in bytes."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return UNKNOWN


def check_room(numbers: int, keys: str) -> None:
    """Refuse what would take more than half of the memory.

    Args:
        numbers: how many are held at once, of eight bytes each.
        keys: the settings that say so, for the sentence.
    """
    need, there = 8 * numbers, memory()
    if need > there / 2:
        raise BadInput(
            f"{keys} should fit into half of this machine's {there / 1e9:.0f} GB of memory. Found sizes that take "
            f"{need / 1e9:.3g} GB; choose smaller ones."
        )
