"""What a row of the list says of a run: tags, how far it is, a mean loss and a mean metric."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

OBJECTIVES = 40  # whose figures are in the list
TAG = 80  # characters of a tag

Row = dict[str, Any]


def tags(settings: Mapping[str, Any]) -> dict[str, str]:
    """What runs are told apart by in the list: experiment, method, data, model, engine and seed."""
    found = {"experiment": settings.get("name"), "algorithm": settings.get("schedule", settings.get("algorithm"))}
    found |= {key: settings.get(key) for key in ("data", "model", "engine", "seed")}
    words = {key: value.get("name") if isinstance(value, dict) else value for key, value in found.items()}
    return {key: str(word)[:TAG] for key, word in words.items() if isinstance(word, str | int) and word != ""}


def of_result(result: Mapping[str, Any]) -> Row:
    """The figures of a run that is complete."""
    if not isinstance(objectives := result.get("objectives"), dict):
        raise ValueError("its result.json has no objectives")
    rows = {name: row for name, row in objectives.items() if isinstance(row, dict)}
    losses = {name: row.get("loss") for name, row in rows.items()}
    metrics = {name: {key: value for key, value in row.items() if key != "loss"} for name, row in rows.items()}
    row: Row = {"round": whole(result.get("rounds")), "seconds": number(result.get("seconds"))}
    return row | _figures(losses, metrics)


def of_lines(lines: list[bytes]) -> Row:
    """The figures of a run that goes on or stopped: of its last round, and of the last evaluation near it."""
    row: Row = {"round": 0}
    for text in reversed(lines):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            row["round"] = row["round"] or whole(line.get("round"))
            if isinstance(losses := line.get("losses"), dict):
                metrics = line.get("metrics")
                return row | _figures(losses, metrics if isinstance(metrics, dict) else {})
    return row


def _figures(losses: Mapping[str, Any], metrics: Mapping[str, Any]) -> Row:
    """Means over the objectives, for one column each: of the losses, and of the first metric that all of them have."""
    found = {str(name)[:TAG]: known for name, value in losses.items() if (known := number(value)) is not None}
    row: Row = {"losses": dict(list(found.items())[:OBJECTIVES]), "loss": _mean(list(found.values()))}
    tables = [table for table in metrics.values() if isinstance(table, dict)]
    shared = [name for name in (tables[0] if tables else ()) if all(name in table for table in tables)]
    if shared and (mean := _mean([number(table[shared[0]]) for table in tables])) is not None:
        row |= {"metric": str(shared[0])[:TAG], "value": mean}
    return row


def _mean(values: list[float | None] | list[float]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def number(value: Any) -> float | None:
    """A number of a file as JSON can say it again; None for what is none, is not finite, or too large to draw."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and abs(value) < 1e300 else None


def whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0
