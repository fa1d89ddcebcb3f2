"""What runs have left, to look at: records, figures, drawings. Nothing here needs torch, or writes into a run."""

from polyfed.report.figure import Axis, Figure, Series
from polyfed.report.records import Found, Record, Study, Tail, find

__all__ = ["Axis", "Figure", "Found", "Record", "Series", "Study", "Tail", "find"]
