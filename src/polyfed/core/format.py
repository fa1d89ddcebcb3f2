"""The format of a run's directory, as a number in its experiment.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyfed.core.errors import BadInput, shown

FORMAT = 1  # runs from before there was a number have none, and are read, too


def check_format(settings: Mapping[str, Any], where: str) -> None:
    """Refuse what a newer version of polyfed has written.

    Args:
        settings: of an experiment.toml; 'format' is the number of the directory's format.
        where: the run, as a sentence calls it.
    """
    found = settings.get("format", 0)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= FORMAT:
        raise BadInput(
            f"{where} is of a run of format {shown(found)}; this version of polyfed reads formats up to {FORMAT}. "
            "Use the version that made it, or a newer one."
        )
