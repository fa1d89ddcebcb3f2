"""The settings of several runs: each by its whole name, and which of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfed.report.records import Record

OUTER = ("name", "folder", "python", "evaluate", "callbacks", "check_rows", "engine")  # not what a method is


@dataclass(frozen=True)
class Differences:
    """The settings of some runs as a table.

    Args:
        runs: their names.
        rows: a setting's whole name, and its value in each run as a text; '' where a run has none of it.
        differing: the names of the settings that are not the same in all runs.
    """

    runs: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    differing: tuple[str, ...]


def differences(records: Sequence[Record]) -> Differences:
    """The resolved settings of some runs, and what differs between them.

    Args:
        records: the runs.
    """
    flats = [dict(flat(record.settings)) for record in records]
    keys = list(dict.fromkeys(key for one in flats for key in one))
    rows = tuple((key, tuple(as_text(one[key]) if key in one else "" for one in flats)) for key in keys)
    differing = tuple(key for key, values in rows if len(set(values)) > 1)
    return Differences(tuple(record.name for record in records), rows, differing)


def flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their whole names, 'algorithm.lr'; an empty table is none."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def as_text(value: Any) -> str:
    """A setting as experiments write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_text(one) for one in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {as_text(one)}" for key, one in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def what_it_is(record: Record) -> dict[str, Any]:
    """The settings that make a method: without the seed, and without what changes no model."""
    inner = {key: value for key, value in record.settings.items() if key not in (*OUTER, "seed")}
    found = dict(flat(inner)) | {"algorithm.name": record.algorithm}
    return {key: value for key, value in found.items() if not (key.startswith("models.") and key.endswith(".seed"))}
