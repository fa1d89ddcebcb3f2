"""What a summary has to say besides its numbers, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from polyfed.report.records import Record


def words(record: Record) -> list[str]:
    """Sentences to be read beside a run's figures: how it ended, whom it lost, which numbers are not exact.

    Args:
        record: the run.
    """
    return [*_state(record), *_summary(record.summary or {}), *_lines(record)]


def _state(record: Record) -> Iterator[str]:
    done, asked = len(record.columns), record.rounds
    state = record.state
    if state == "running":
        yield f"The run is under way: {done} of {asked} rounds are done."
    elif state == "stopped":
        yield f"The run has no result yet: it stopped after {done} of {asked} rounds."


def _summary(summary: Mapping[str, Any]) -> Iterator[str]:
    for key in ("stopped", "mostly_failed"):
        if isinstance(told := summary.get(key), str) and told:
            yield told
    for key in ("never_used", "callbacks_failed", "bounds", "rules", "choices"):
        told = summary.get(key)
        yield from (str(one) for one in told) if isinstance(told, list) else ()
    if isinstance(best := summary.get("best"), Mapping) and "round" in best:
        value = best.get("value")
        what = f" by {best['by']}" if isinstance(best.get("by"), str) else ""
        said = f", {value:.4g}" if isinstance(value, int | float) else ""
        yield f"The best model{what} is that of round {best['round']}{said}."


def _lines(record: Record) -> Iterator[str]:
    """What the last line could not compute."""
    last = record.last or {}
    for objective, name, why in _pairs(last.get("not_computed")):
        yield f"The {name} of {objective} could not be computed: {why}."


def _pairs(table: Any) -> Iterator[tuple[str, str, Any]]:
    for objective, row in table.items() if isinstance(table, Mapping) else ():
        for name, value in row.items() if isinstance(row, Mapping) else ():
            yield str(objective), str(name), value
