"""An experiment's settings: from a file or by a built-in name, changed by KEY=VALUE."""

from __future__ import annotations

import importlib.resources
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from polyfed.core.code import ALLOW
from polyfed.core.errors import BadInput, cut, nearest, shown
from polyfed.core.settings import Settings
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
    recorded = settings.pop("folder", "")  # in the copy that a run keeps
    use_code_of(folder(source), path, recorded if isinstance(recorded, str) else "", allow_code, remedy)
    _find_optimum(settings.get("evaluate"), folder(source))
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


def _find_optimum(evaluate: Any, folder: str) -> None:
    """A model file that an experiment names lies beside it, unless its path is absolute."""
    if isinstance(evaluate, dict) and isinstance(path := evaluate.get("optimum"), str) and path != "known":
        evaluate["optimum"] = str(Path(folder, path))


def without_name(table: Any) -> Settings:
    """A table without its name."""
    return {key: value for key, value in table.items() if key != "name"} if isinstance(table, dict) else {}


def override(settings: Settings, assignments: Iterable[str]) -> Settings:
    """Apply KEY=VALUE texts, `algorithm.lr=0.1`; a value is TOML, or else a plain word, and nothing takes a key out."""
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"--set needs KEY=VALUE, as in --set algorithm.lr=0.1. Found {shown(text)}.")
        *path, leaf = _keys(key.strip())
        _check_model(settings, [*path, leaf])
        node = settings
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise BadInput(f"--set {shown(key)}: {shown(part)} is a value, not a table.")
        if value.strip():
            node[leaf] = _value(value.strip())
        else:
            node.pop(leaf, None)
    return settings


def _check_model(settings: Settings, path: list[str]) -> None:
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


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError, KeyError):
        return text
