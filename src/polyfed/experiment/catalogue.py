"""Everything that has a name, and the settings of each: what `polyfed list` and the site show."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from polyfed.core.registry import Registry
from polyfed.rates import Rule

GIVEN = {  # arguments that the system provides
    "datasets": ("seed",),
    "models": ("dataset",),
    "partitions": ("dataset", "rng"),
    "engines": ("parts", "layers"),
    "rules": ("rule",),
}
PAGES = "https://polyfed.github.io/polyfed/"


class Setting(NamedTuple):
    """One setting: its key, what may be written there, the default (None where it is needed), and its meaning."""

    name: str
    values: str
    default: str | None
    meaning: str


def registries() -> dict[str, Registry[Any]]:
    """All kinds of things that are found by name."""
    from polyfed.algorithms import algorithms
    from polyfed.algorithms.models.schedules import schedules
    from polyfed.algorithms.server_optimizers import server_optimizers
    from polyfed.compress import compressors
    from polyfed.data import datasets, partitions
    from polyfed.engines import engines
    from polyfed.layers import layers
    from polyfed.models import models
    from polyfed.rates import rules
    from polyfed.run.callbacks import callbacks
    from polyfed.weights import weightings

    return {
        "algorithms": algorithms, "datasets": datasets, "models": models, "partitions": partitions,
        "weightings": weightings, "compressors": compressors, "schedules": schedules, "engines": engines,
        "layers": layers, "callbacks": callbacks, "rules": rules,
        "server_optimizers": server_optimizers,
    }  # fmt: skip


def page(kind: str, name: str) -> str:
    """The page of a registered thing or a built-in experiment, from the site's root, without its ending."""
    if kind == "experiments":  # one page for all
        return "catalogue/experiments"
    slug = name.replace("+", "-plus")
    return f"methods/{slug}" if kind in ("algorithms", "schedules") else f"catalogue/{kind}/{slug}"


def settings_of(kind: str, name: str) -> list[Setting]:
    """The settings of a registered thing, in the order of its signature."""
    if kind == "schedules":  # functions of the round: nothing to set
        return []
    thing: Any = registries()[kind][name]
    meanings = arguments_explained(thing)
    hints = _hints(thing)
    kept = [
        p
        for p in inspect.signature(thing).parameters.values()
        if p.name not in GIVEN.get(kind, ()) and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    return [Setting(p.name, values(hints.get(p.name, Any)), _default(thing, p), meanings.get(p.name, "")) for p in kept]


def arguments_explained(thing: Any) -> dict[str, str]:
    """What the docstring of a function or class, or of a base class, says under Args about each argument."""
    found: dict[str, str] = {}
    for kind in reversed(inspect.getmro(thing)) if inspect.isclass(thing) else [thing]:
        text = inspect.cleandoc(kind.__dict__.get("__doc__") or "" if inspect.isclass(kind) else kind.__doc__ or "")
        _, _, after = text.partition("Args:\n")
        entries = re.split(r"^    (?=\S)", after.split("\n\n")[0], flags=re.MULTILINE)
        for names, colon, meaning in (entry.partition(": ") for entry in entries):
            if colon:
                found.update(dict.fromkeys(re.split(r", *", names.strip()), " ".join(meaning.split())))
    return found


def values(hint: Any) -> str:
    """A type as a reader of an experiment file would say it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(values(arguments[0]), arguments[1:])
    if origin is Literal:
        return ", ".join(_written(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(values(one) for one in arguments if one is not type(None)))
    if origin in (list, tuple, Sequence):
        return f"list of {values(arguments[0])}" if arguments else "list"
    if origin in (dict, Mapping):
        return "table"
    if origin is Callable:
        return "function of the round"
    if dataclasses.is_dataclass(hint) or (inspect.isclass(hint) and issubclass(hint, BaseModel)):
        return _table(hint)
    if hint is Rule:
        return "{rule, ...}"
    plain = {float: "number", int: "whole number", bool: "true, false", str: "text", Any: "anything"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))


def _table(kind: Any) -> str:
    """The keys of a table; first the one that tells it from others, with its value."""
    hints = _hints(kind)
    fixed = {key: values(hint) for key, hint in hints.items() if typing.get_origin(hint) is Literal}
    keys = sorted(inspect.signature(kind).parameters, key=lambda key: key not in fixed)
    return "{" + ", ".join(f"{key} = {fixed[key]}" if key in fixed else key for key in keys) + "}"


def _bounded(text: str, notes: Sequence[Any]) -> str:
    rules = [rule for note in notes for rule in (note.metadata if isinstance(note, FieldInfo) else [note])]
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = [
        f"{sign} {getattr(rule, word):g}"
        for rule in rules
        for word, sign in signs.items()
        if isinstance(getattr(rule, word, None), int | float)
    ]
    return " ".join([text, ", ".join(bounds)]).strip()


def _default(thing: Any, parameter: inspect.Parameter) -> str | None:
    value = parameter.default
    if type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":  # all that a dataclass's signature says of it
        field = thing.__dataclass_fields__[parameter.name]
        value = field.default if isinstance(field.default, FieldInfo) else field.default_factory()
    if isinstance(value, FieldInfo):
        value = value.get_default(call_default_factory=True, validated_data={})
    if value is parameter.empty or value is PydanticUndefined:
        return None
    return "" if value is None else _written(value)


def _written(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and abs(value) >= 1e6:
        return re.sub(r"e\+0*", "e", f"{value:g}")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_written(one)}" for name, one in value.items() if one is not None) + "}"
    return str(value)


def _hints(thing: Any) -> dict[str, Any]:
    try:
        if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
            return typing.get_type_hints(thing, include_extras=True)
        return typing.get_type_hints(thing.__init__ if inspect.isclass(thing) else thing, include_extras=True)
    except NameError:  # annotations that exist for a type checker only
        return {}
