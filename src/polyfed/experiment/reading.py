"""An experiment's settings: from a file or by a built-in name, changed by KEY=VALUE."""

from __future__ import annotations

import importlib.resources
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from polyfed.core.code import ALLOW
from polyfed.core.errors import BadInput, cut, nearest, shown
from polyfed.core.format import check_format
from polyfed.core.settings import Settings
from polyfed.experiment.changing import is_named, refit
from polyfed.experiment.imports import use_code_of


def builtin() -> dict[str, Path]:
    """The experiments that come with polyfed."""
    folder = Path(str(importlib.resources.files("polyfed.experiment") / "builtin"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read(source: str, allow_code: Sequence[str] = (), remedy: str = ALLOW) -> tuple[str, Settings]:
    """An experiment's name and settings, from a file or a built-in name.

    Args:
        source: the file's path, or the name.
        allow_code: installed packages whose code the file may name; code beside the file needs no leave.
        remedy: how a person allows another.
    """
    path = builtin().get(source, Path(source))
    try:
        if path.is_dir():
            raise BadInput(f"{shown(source)} is a directory; an experiment is a TOML file or a built-in name.")
        if not path.is_file():
            raise BadInput(f"No experiment {shown(source)}: neither a file nor built in.{nearest(source, builtin())}")
        settings = parse(path.read_bytes(), shown(source))
    except (OSError, ValueError) as error:  # no right to read it; a name that no file can have
        raise BadInput(f"The experiment {shown(source)} cannot be read: {cut(str(error))}.") from error
    check_format(settings, shown(source))
    settings.pop("format", None)  # in the copy that a run keeps
    recorded = settings.pop("folder", "")  # in that copy, too
    use_code_of(folder(source), path, recorded if isinstance(recorded, str) else "", allow_code, remedy)
    _find(settings.get("evaluate"), "optimum", folder(source))
    models = settings.get("models")
    for table in (settings, *(models.values() if isinstance(models, dict) else ())):
        _find(table.get("model") if isinstance(table, dict) else None, "weights", folder(source))
    plain = re.sub(r"[^\w.+-]+", "-", path.stem).strip("-._") or "experiment"
    return experiment_name(settings.pop("name", plain[:99])), settings


def parse(data: bytes, what: str) -> Settings:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} is not text; an experiment is a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{what} is not valid TOML: {cut(str(error))}.") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, brackets within brackets
        raise BadInput(f"{what} is not TOML that can be read: {cut(str(error))}.") from error


def experiment_name(value: Any) -> str:
    """A run's directory is called by it, so that it should be one plain word of a path."""
    if not isinstance(value, str) or not re.fullmatch(r"[^\W_][\w .+-]{0,99}", value):
        raise BadInput(
            "name should be letters, digits, spaces, - _ + and dots, beginning with a letter or a digit: the run's "
            f"directory is called by it. Found {shown(value)}."
        )
    return value


def folder(source: str) -> str:
    """Where an experiment's own functions may lie: beside its file."""
    return "" if source in builtin() else str(Path(source).parent.resolve())


def _find(table: Any, key: str, folder: str) -> None:
    """A model file that an experiment names lies beside it, unless its path is absolute."""
    if isinstance(table, dict) and isinstance(path := table.get(key), str) and path != "known":
        table[key] = str(Path(folder, path))


def override(
    settings: Settings,
    assignments: Iterable[str],
    names: Mapping[str, str | None] | None = None,
    told: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    vet: Callable[[Settings], None] = lambda settings: None,
) -> Settings:
    """Apply KEY=VALUE texts, `algorithm.lr=0.1`; a value is TOML, or else a plain word, and nothing takes a key out.

    Where they name another method, model, ..., what the file sets and that does not have is left out.

    Args:
        settings: the file's; they are changed.
        assignments: the texts.
        names: what tables name, by table, before the texts: {'algorithm': 'fsmgda'}.
        told: is told what is left out.
        vet: sees the settings before code that they name is imported, and may refuse them.
    """
    before, given = deepcopy(settings), []
    for table, word in (names or {}).items():
        if word is not None:
            given.append(_assign(settings, (table, "name"), word))
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"--set needs KEY=VALUE, as in --set algorithm.lr=0.1. Found {shown(text)}.")
        path = tuple(_keys(key.strip()))
        _check_model(settings, path)
        given.append(_assign(settings, path, as_value(value.strip()) if value.strip() else None))
    vet(settings)
    for line in refit(before, settings, given):
        told(line)
    return settings


def _assign(settings: Settings, path: tuple[str, ...], value: Any) -> tuple[str, ...]:
    """Put a value there; None takes the key out."""
    node = settings
    for i, part in enumerate(path[:-1]):
        inner = node.setdefault(part, {})
        if isinstance(inner, str) and is_named(path[: i + 1]):  # its name, in short
            inner = node[part] = {"name": inner}
        if not isinstance(inner, dict):
            raise BadInput(f"--set {shown('.'.join(path))}: {shown(part)} is a value, not a table.")
        node = inner
    if value is None:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = value
    return path


def _check_model(settings: Settings, path: tuple[str, ...]) -> None:
    """A misspelt model would otherwise become one more, made of the experiment's defaults."""
    known = settings.get("models")
    if path[0] == "models" and len(path) > 1 and path[1] not in (known if isinstance(known, dict) else ()):
        name = shown(path[1])
        raise BadInput(f"--set {shown('.'.join(path))}: there is no model {name}.{nearest(path[1], known or ())}")


def _keys(text: str) -> list[str]:
    """The words of a dotted key; one with a dot in it is quoted, as in TOML: objectives."a.b".loss."""
    try:
        node: Any = tomllib.loads(f"{text} = true")
    except (ValueError, RecursionError):
        return text.split(".")
    keys = []
    while isinstance(node, dict) and len(node) == 1:
        [(key, node)] = node.items()
        keys.append(key)
    return keys if node is True else text.split(".")


def as_value(text: str) -> Any:
    """A value as TOML reads it, or else a plain word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError, KeyError):
        return text
