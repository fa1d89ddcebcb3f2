"""An experiment's settings: from a file or by a built-in name, changed by KEY=VALUE."""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from polyfed.core.errors import BadInput, nearest
from polyfed.core.settings import Settings
from polyfed.experiment.imports import add_import_folder


def builtin() -> dict[str, Path]:
    """The experiments that come with polyfed."""
    folder = Path(str(importlib.resources.files("polyfed.experiment") / "builtin"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read(source: str) -> tuple[str, Settings]:
    """An experiment's name and settings, from a file or a built-in name."""
    path = builtin().get(source, Path(source))
    if path.is_dir():
        raise BadInput(f"{source} is a directory; an experiment is a TOML file or a built-in name.")
    if not path.is_file():
        raise BadInput(f"No experiment {source!r}: neither a file nor built in.{nearest(source, builtin())}")
    try:
        settings = tomllib.loads(path.read_bytes().decode())
    except UnicodeDecodeError as error:
        raise BadInput(f"{source} is not text; an experiment is a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source} is not valid TOML: {error}.") from error
    add_import_folder(folder(source))
    _find_optimum(settings.get("evaluate"), folder(source))
    add_import_folder(settings.pop("folder", ""))  # in the copy that a run keeps
    return str(settings.pop("name", path.stem)), settings


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
            raise BadInput(f"--set needs KEY=VALUE, as in --set algorithm.lr=0.1. Found {text!r}.")
        *path, leaf = key.strip().split(".")
        _check_model(settings, [*path, leaf])
        node = settings
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise BadInput(f"--set {key}: {part!r} is a value, not a table.")
        if value.strip():
            node[leaf] = _value(value.strip())
        else:
            node.pop(leaf, None)
    return settings


def _check_model(settings: Settings, path: list[str]) -> None:
    """A misspelt model would otherwise become one more, made of the experiment's defaults."""
    known = settings.get("models")
    if path[0] == "models" and len(path) > 1 and path[1] not in (known if isinstance(known, dict) else ()):
        raise BadInput(f"--set {'.'.join(path)}: there is no model {path[1]!r}.{nearest(path[1], known or ())}")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
