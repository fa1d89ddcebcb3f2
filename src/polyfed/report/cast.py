"""Who plays what in figures of several runs: seeds of one method share a name and a colour."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from polyfed.report.figure import DASHES, MARKERS, PALETTE
from polyfed.report.records import Record
from polyfed.report.settings import as_text, what_it_is

WORDS = 3  # settings that a name tells at most
CELL = re.compile(r"-seed\d+-[0-9a-f]{8}$")  # how the names of a study's runs end


class Look(TypedDict):
    """Places in the palette, among the dashes and among the markers."""

    colour: int
    dash: int
    marker: int


@dataclass(frozen=True)
class Role:
    """One run among others.

    Args:
        record: the run.
        name: of its method; runs that differ in their seeds alone have one.
        place: of the method among the methods, from 0 on.
    """

    record: Record
    name: str
    place: int

    @property
    def look(self) -> Look:
        """Its colour, dash and marker."""
        return look(self.place)


def look(place: int) -> Look:
    """The colour, dash and marker of a place: colours come again with another dash and another marker."""
    turn = place // len(PALETTE)
    return {"colour": place % len(PALETTE), "dash": turn % len(DASHES), "marker": (place + turn) % len(MARKERS)}


def cast(records: Sequence[Record]) -> list[Role]:
    """The roles of some runs, in their order; methods come in the order of their first runs."""
    groups = _groups(records)
    names = _names([[records[i] for i in group] for group in groups])
    roles: dict[int, Role] = {}
    for place, (group, name) in enumerate(zip(groups, names, strict=True)):
        roles |= {i: Role(records[i], name, place) for i in group}
    return [roles[i] for i in range(len(records))]


def _groups(records: Sequence[Record]) -> list[list[int]]:
    """The places of runs that differ in their seeds alone; one seed twice is no repetition, and each run is alone."""
    groups: dict[Any, list[int]] = {}
    for i, record in enumerate(records):
        key = tuple(sorted((k, as_text(v)) for k, v in what_it_is(record).items())) if record.settings else i
        groups.setdefault(key, []).append(i)
    found = []
    for group in groups.values():
        apart = len({str(records[i].seed) for i in group}) == len(group)
        found += [group] if apart else [[i] for i in group]
    return sorted(found, key=lambda group: group[0])


def _names(groups: list[list[Record]]) -> list[str]:
    """The names that a comparison has; else the method's with what sets it apart, where that is short, or the runs'."""
    given = [{record.method for record in group} for group in groups]
    if all(len(one) == 1 and "" not in one for one in given) and len(set().union(*given)) == len(given):
        return [one.pop() for one in given]
    names = [_described(group[0], [g[0] for g in groups]) for group in groups]
    if all(names) and len({group[0].algorithm for group in groups}) == 1 < len(groups):
        names = [name.split(" ", 1)[-1] for name in names]  # what all of them are called tells nothing
    own = [group[0].name for group in groups]
    short = [CELL.sub("", name) for name in own]
    if not all(names) and len(set(short)) == len(short) and all(map(CELL.search, own)):
        return short  # as the study has named its runs, all of them alike
    return _unique([mine if not name or names.count(name) > 1 else name for name, mine in zip(names, own, strict=True)])


def _unique(names: Sequence[str]) -> list[str]:
    """Names of which no two are the same: those that come again have a number behind them."""
    found: list[str] = []
    for name in names:
        more = (f"{name} ({k})" for k in range(2, len(names) + 2))
        found.append(name if name not in found else next(one for one in more if one not in found))
    return found


def _described(record: Record, others: Sequence[Record]) -> str:
    alike = [what_it_is(other) for other in others if other.algorithm == record.algorithm]
    mine = what_it_is(record)
    keys = [key for key in mine if any(other.get(key, "") != mine[key] for other in alike)]
    if len(keys) > WORDS or not record.algorithm:
        return ""
    return " ".join([record.algorithm, *(f"{_last(key, mine)}={as_text(mine[key])}" for key in keys)])


def _last(key: str, among: Mapping[str, Any]) -> str:
    """A setting's last word, where it is the only one that ends so."""
    word = key.rsplit(".", 1)[-1]
    return word if sum(other.rsplit(".", 1)[-1] == word for other in among) == 1 else key.removeprefix("algorithm.")
