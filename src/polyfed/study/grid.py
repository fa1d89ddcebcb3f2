"""The grid of a comparison: methods times settings times seeds, from one experiment.

A key applies to those of the methods that have it. Of the experiment's own settings, a method gets those that it has;
what is left out is said once.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from polyfed.algorithms import algorithms as methods
from polyfed.algorithms.models.schedules import schedules
from polyfed.core.errors import BadInput, cut, nearest, shown
from polyfed.core.settings import Settings, knows
from polyfed.experiment.reading import as_value, override
from polyfed.study.cells import Cell, make_cell

NAMED = ("algorithm", "schedule")  # tables of what is compared
OPEN, CLOSE, QUOTES = "[{", "]}", "\"'"


@dataclass(frozen=True)
class Choice:
    """One of the methods that are compared, or one of the schedules of several models.

    Args:
        name: the method's, or the schedule's.
        given: settings of its own, as KEY=VALUE texts without the table: 'mu=0.1'.
    """

    name: str
    given: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """A key, and the values that it takes one after the other, as texts."""

    key: str
    values: tuple[str, ...]


@dataclass
class Grid:
    """What is compared.

    Args:
        cells: all runs, row after row.
        notes: what was left out of the experiment for some method, a sentence each.
    """

    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> dict[str, Mapping[str, Any]]:
        """The rows in their order, and what each stands for."""
        return {cell.row: cell.values for cell in self.cells}


def make_grid(settings: Settings, choices: Sequence[Choice], varied: Sequence[Setting], seeds: Sequence[int]) -> Grid:
    """Every run of a comparison; settings that no method has are refused.

    Args:
        settings: the experiment's.
        choices: the methods, or schedules.
        varied: settings and their values.
        seeds: of the runs.
    """
    several = bool(settings.get("models"))
    _check_choices(choices, several)
    _check_known(settings, choices, varied, several)
    _check_callbacks(settings.get("callbacks"))
    grid = Grid()
    for choice in choices:
        own = [one for one in varied if _applies(one.key, choice, several)]
        for values in itertools.product(*(one.values for one in own)):
            _add_row(grid, settings, choice, list(zip(own, values, strict=True)), seeds)
    _check_apart(grid.cells)
    return grid


def _check_apart(cells: Sequence[Cell]) -> None:
    """Refuse two rows of one name, or two runs with the same settings."""
    for told in ([(cell.row, cell.seed) for cell in cells], [cell.name.rpartition("-")[2] for cell in cells]):
        if twice := next((i for i, one in enumerate(told) if one in told[:i]), None):
            row = shown(cells[twice].row)
            raise BadInput(f"Each run should be another. Found {row} twice; name each method and value once.")


def _add_row(
    grid: Grid, settings: Settings, choice: Choice, values: Sequence[tuple[Setting, str]], seeds: Sequence[int]
) -> None:
    several = bool(settings.get("models"))
    words = [choice.name, *choice.given]
    many = [(one.key, value) for one, value in values if len(one.values) > 1]
    shorts = [_short(key) for key, _ in many]
    words += [
        f"{short if shorts.count(short) == 1 else key}={_word(value)}"
        for short, (key, value) in zip(shorts, many, strict=True)
    ]
    row = " ".join(words)
    texts = [f"algorithm.{text}" for text in choice.given] + [f"{one.key}={value}" for one, value in values]
    named = _naming(settings, choice.name) if several else []
    table = None if several else {"algorithm": choice.name}
    made = override(copy.deepcopy(settings), [*named, *texts], table, told=lambda text: _note(grid, text))
    stands_for = {"schedule.name" if choice.name in schedules else "algorithm.name": choice.name}
    stands_for |= {key: as_value(value) for key, _, value in (text.partition("=") for text in texts)}
    grid.cells += [make_cell(row, seed, made, stands_for) for seed in seeds]


def _note(grid: Grid, text: str) -> None:
    if text not in grid.notes:
        grid.notes.append(text)


def _naming(settings: Settings, name: str) -> list[str]:
    """What makes all models of an experiment learn by a method, or share the clients by a schedule."""
    if name in schedules:
        return [f"schedule.name={name}"]
    return [f"algorithm.name={name}", *(f"models.{model}.algorithm.name={name}" for model in settings["models"])]


def _check_choices(choices: Sequence[Choice], several: bool) -> None:
    if not choices:
        raise BadInput("--algorithms should name the methods to compare, as in fedcmoo,fedavg. Found none.")
    for choice in choices:
        if choice.name in schedules and several:
            if choice.given:
                raise BadInput(f"A schedule has no settings. Found {shown(choice.given[0])} for {choice.name}.")
        elif choice.name in schedules:
            raise BadInput(
                f"{choice.name!r} is a schedule, by which several models share the clients; this experiment has one "
                "model: compare methods ('polyfed list algorithms')."
            )
        else:
            _ = methods[choice.name]  # or a sentence that names what is near


def _check_known(settings: Settings, choices: Sequence[Choice], varied: Sequence[Setting], several: bool) -> None:
    keys = [one.key for one in varied]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise BadInput(f"--set {twice} is given twice; give its values at once, as in {twice}=0.1,0.3.")
    for key in keys:
        if key in NAMED or (key.split(".")[-1] == "name" and key.split(".")[0] in NAMED):
            raise BadInput(f"--set {key}: what is compared is named by --algorithms; leave this out.")
        if key == "seed":
            raise BadInput("--set seed: --seeds says how many, from the experiment's own on; leave this out.")
        if twice := next((choice.name for choice in choices if key in _given(choice)), None):
            raise BadInput(f"--set {key}: --algorithms sets it for {twice} already; give its values in one place.")
        if not any(_applies(key, choice, several) for choice in choices):
            names = ", ".join(choice.name for choice in choices)
            known = {k for choice in choices for k in _settings_of(choice)}
            word = key.split(".")[1]
            raise BadInput(f"None of the methods compared ({cut(names, 80)}) has {shown(key)}.{nearest(word, known)}")


def _given(choice: Choice) -> set[str]:
    """The keys that a method brings values of its own for."""
    return {f"algorithm.{text.partition('=')[0].strip()}" for text in choice.given}


def _check_callbacks(tables: Any) -> None:
    """Refuse trackers that would write all runs into one file."""
    for table in tables if isinstance(tables, list) else ():
        for key in ("file", "folder"):
            path = table.get(key) if isinstance(table, dict) else None
            if isinstance(path, str) and Path(path).is_absolute():
                raise BadInput(
                    f"callbacks.{key} should be a path in each run's directory, as several runs are compared. Found "
                    f"{shown(path)}; leave its folder out."
                )


def _applies(key: str, choice: Choice, several: bool) -> bool:
    """Whether a method has a setting; those of data, models and the rest are everybody's."""
    table, _, rest = key.partition(".")
    if table != "algorithm" or choice.name in schedules:
        return True
    return knows(methods[choice.name], rest.split(".")[0])


def _settings_of(choice: Choice) -> set[str]:
    return set() if choice.name in schedules else set(inspect.signature(methods[choice.name]).parameters)


# texts of the command line, and of Python


def read_choices(given: str | Iterable[str | Mapping[str, Any]]) -> list[Choice]:
    """Methods from 'fedcmoo,fedprox:mu=0.1', or from a list of such words and of tables with a name.

    Args:
        given: the text, or the list.
    """
    if not isinstance(given, str) and not isinstance(given, Iterable):
        raise BadInput(f"algorithms should be a list of methods' names. Found {shown(given)}.")
    entries: list[Any] = split(given) if isinstance(given, str) else list(given)
    return [_choice(entry) for entry in entries]


def _choice(entry: Any) -> Choice:
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        rest = {key: value for key, value in entry.items() if key != "name"}
        return Choice(entry["name"], tuple(f"{key}={as_text(value)}" for key, value in rest.items()))
    if not isinstance(entry, str) or not entry.strip():
        raise BadInput(f"A method should be a name, as 'polyfed list algorithms' shows them. Found {shown(entry)}.")
    parts = entry.strip().split(":")
    first = next((i for i, part in enumerate(parts) if "=" in part), len(parts))  # 'mine:Method' has a colon, too
    return Choice(":".join(parts[:first]), tuple(parts[first:]))


def read_settings(given: Iterable[str] | Mapping[str, Any]) -> list[Setting]:
    """Settings and their values from KEY=VALUE,VALUE texts, or from a dict in which a list is a choice of values.

    Args:
        given: the texts, or the dict.
    """
    if isinstance(given, Mapping):
        return [
            Setting(str(key), tuple(as_text(one) for one in (value if isinstance(value, list | tuple) else [value])))
            for key, value in given.items()
        ]
    found = []
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"--set needs KEY=VALUE, as in --set algorithm.lr=0.1,0.3. Found {shown(text)}.")
        found.append(Setting(key.strip(), tuple(split(value)) or ("",)))
    return found


def split(text: str) -> list[str]:
    """The words between commas; a comma in brackets, braces or quotes is the word's own: '[1, 2]' is one."""
    words, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        depth += 0 if quote else (character in OPEN) - (character in CLOSE)
        if character == "," and depth == 0 and not quote:
            words.append("")
        else:
            words[-1] += character
    return [word.strip() for word in words if word.strip()]


def as_text(value: Any) -> str:
    """A value of Python as TOML, on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(str(key))} = {as_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_text, value))}]"
    try:
        return tomli_w.dumps({"value": value.item() if isinstance(value, np.generic) else value})[len("value = ") : -1]
    except (TypeError, ValueError) as error:
        raise BadInput(f"A setting should be a number, a text, a list or a dict. Found {shown(value)}.") from error


def _short(key: str) -> str:
    """The last word of a key: what a row of a table calls it."""
    return key.rpartition(".")[2].strip("\"'")


def _word(value: str) -> str:
    """A value as a row of a table shows it."""
    return cut(re.sub(r"\s+", "", value.strip("\"'")), 40)
