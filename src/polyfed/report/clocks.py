"""What a curve can be drawn against: rounds, bytes, seconds of the clock and simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyfed.report.figure import Axis, Numbers
from polyfed.report.records import Record

CLOCKS = {
    "round": Axis("round", "round"),
    "bytes_up": Axis("bytes_up", "bytes uploaded by all clients", unit="bytes"),
    "bytes": Axis("bytes", "bytes in both directions", unit="bytes"),
    "seconds": Axis("seconds", "seconds of real time", unit="seconds"),
    "simulated_seconds": Axis("simulated_seconds", "simulated seconds", unit="seconds"),
}


def clock_axes(records: Sequence[Record]) -> dict[str, Axis]:
    """The axes that some of the runs have."""
    there = {key for record in records for key in clocks(record)}
    return {key: axis for key, axis in CLOCKS.items() if key in there}


def clocks(record: Record) -> dict[str, Numbers]:
    """Where a run stood after each of its rounds: by axis, added up from the first round on."""
    columns = record.columns
    totals = {key: columns.total(key) for key in ("bytes_up", "bytes_down", "seconds", "simulated_seconds")}
    found = {"round": columns.rounds, "bytes_up": totals["bytes_up"]}
    if len(totals["bytes_up"]) and len(totals["bytes_down"]):
        found["bytes"] = totals["bytes_up"] + totals["bytes_down"]
    found |= {key: totals[key] for key in ("seconds", "simulated_seconds")}
    return {key: values for key, values in found.items() if len(values)}


def places(record: Record, rows: np.ndarray[Any, np.dtype[np.intp]]) -> dict[str, Numbers]:
    """Where a run stood at some of its lines."""
    return {key: values[rows] for key, values in clocks(record).items()}
