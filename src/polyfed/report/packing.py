"""Figures as small JSON for a page: long lists of numbers as base64 of float32, and nothing that could end a script."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyfed.report.figure import Figure

SHORT = 12  # numbers; shorter lists are smaller as they are
LISTS = ("y", "low", "high")


def packed(figure: Figure) -> dict[str, Any]:
    """`Figure.to_json` with its long lists of numbers as texts: 'f4:', then base64 of float32, low bytes first."""
    found = figure.to_json()
    found["columns"] = [_packed(values) for values in found["columns"]]
    for one in found["series"]:
        one |= {name: _packed(one[name]) for name in LISTS if name in one}
    if "matrix" in found:
        found["matrix"] = [_packed(row) for row in found["matrix"]]
    return found


def _packed(values: Sequence[float | None]) -> Any:
    if len(values) < SHORT:
        return values
    with np.errstate(over="ignore"):
        narrow = np.array([np.nan if value is None else value for value in values]).astype("<f4")
    return "f4:" + base64.b64encode(narrow.tobytes()).decode("ascii")


def in_script(value: Any) -> str:
    """JSON that may stand in a <script> element: no text in it can end that element or begin another."""
    told = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return told.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
