"""Checking tables of settings against the functions and classes they are for, with errors that name the key."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.dataclasses import dataclass as pydantic_dataclass

from polyfed.core.errors import BadInput, nearest

Settings = dict[str, Any]
T = TypeVar("T")


def whole(value: Any) -> Any:
    """Refuses true and '3' where a whole number is meant."""
    if isinstance(value, bool | str):
        raise ValueError("a valid integer")
    return value


def real(value: Any) -> Any:
    """Refuses true and '0.1' where a number is meant."""
    if isinstance(value, bool | str):
        raise ValueError("a valid number")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(real)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(real)]
Count = Annotated[int, Field(ge=0), BeforeValidator(whole)]
STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # of a dataclass of settings


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass whose values are checked, with errors that are sentences."""
    decorated: Any = pydantic_dataclass(frozen=True, kw_only=True, config=STRICT)(cls)
    made: type[T] = decorated
    initialise = made.__init__

    @functools.wraps(initialise)
    def checked(self: Any, *arguments: Any, **values: Any) -> None:
        if arguments:
            raise BadInput(f"{made.__name__}: settings are given by name. Found {arguments[0]!r} without one.")
        try:
            initialise(self, **values)
        except ValidationError as error:
            raise BadInput(f"{made.__name__}: {_sentence(error, values, '', accepts(made))}") from None

    setattr(made, "__init__", checked)  # noqa: B010 (a plain assignment is refused by type checkers)
    return made


class Table(BaseModel):
    """A table with a fixed set of keys."""

    model_config = ConfigDict(extra="forbid")


def accepts(factory: Callable[..., Any], given: typing.Collection[str] = ()) -> set[str]:
    """The settings a factory takes, without those that the system gives it."""
    return set(inspect.signature(factory).parameters) - set(given)


def build(factory: Callable[..., Any], table: Settings, path: str, **given: Any) -> tuple[Any, Settings]:
    """Call a factory with a validated table; returns what it made and the table with all defaults filled in.

    `given` are arguments the system provides; a factory gets those it has parameters for.
    """
    if hasattr(factory, "__pydantic_validator__"):
        kind: Any = factory
        if unknown := next((key for key in table if key not in accepts(factory)), None):  # pydantic may ignore it
            raise BadInput(f"Unknown key {f'{path}.{unknown}'!r}.{nearest(unknown, accepts(factory))}")
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        made = check(lambda: adapter.validate_python(table), table, path, accepts(factory))
        return made, adapter.dump_python(made, mode="json", exclude_none=True)
    ours = {name: value for name, value in given.items() if name in inspect.signature(factory).parameters}
    values, resolved = arguments(factory, table, path, ours)
    return factory(**ours, **values), resolved


def arguments(
    factory: Callable[..., Any], table: Settings, path: str, given: typing.Collection[str]
) -> tuple[Settings, Settings]:
    """A function's arguments from a table, validated; and as plain values, defaults filled in."""
    values = check(lambda: _model(factory, given)(**table), table, path, accepts(factory, given))
    given_too = values.model_extra or {}
    return {**{name: getattr(values, name) for name in type(values).model_fields}, **given_too}, _plain(values)


def _plain(values: Any) -> Settings:
    dumped: Settings = values.model_dump(mode="json", exclude_none=True)
    return dumped


def _model(factory: Callable[..., Any], given: typing.Collection[str]) -> Any:
    """A pydantic model of a function's own parameters."""
    try:
        hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    except NameError:  # annotations that exist for a type checker only
        hints = {}
    named = {
        n: p
        for n, p in inspect.signature(factory).parameters.items()
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if p.default is p.empty else p.default)
        for name, p in named.items()
        if name not in given
    }
    open_ended = len(named) < len(inspect.signature(factory).parameters)
    config = ConfigDict(extra="allow" if open_ended else "forbid", arbitrary_types_allowed=True, validate_default=False)
    return create_model(getattr(factory, "__name__", "Settings"), __config__=config, **fields)


def check(validate: Callable[[], Any], table: Settings, path: str, known: typing.Collection[str]) -> Any:
    """Run a validation; its first complaint becomes one sentence that names the key, the value and the rule."""
    try:
        return validate()
    except ValidationError as error:
        raise BadInput(_sentence(error, table, path, known)) from error


def _sentence(error: ValidationError, table: Settings, path: str, known: typing.Collection[str]) -> str:
    first = max(error.errors(), key=lambda e: len(_place(e, table)[0]))  # of a union, the branch that was meant
    keys, found = _place(first, table)
    name = ".".join(keys)
    key = ".".join(part for part in (path, name) if part)
    if first["type"] in UNKNOWN:
        return f"Unknown key {key!r}.{nearest(name, known) if len(keys) == 1 else ''}"
    if first["type"] in MISSING:
        return f"The key {key!r} is needed and was not given."
    if first["type"] == "union_tag_invalid":
        tag, tags = first["ctx"]["tag"], first["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"Unknown {key}.name {tag!r}.{nearest(tag, tags)}"
    if first["type"] == "union_tag_not_found":
        return f"The key '{key}.name' is needed and was not given."
    if first["type"] == "value_error" and not name:
        return f"{path}: {_rule(first['msg'])}" if path else _rule(first["msg"])
    rules = [e["msg"] for e in error.errors() if _place(e, table)[0] == keys]
    return f"{key} should be {' or '.join(dict.fromkeys(map(_rule, rules)))}. Found {found!r}."


UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")


def _place(error: Any, table: Any) -> tuple[list[str], Any]:
    """The keys that lead to what is complained of, and what is there; pydantic also names the branches of a union."""
    keys: list[str] = []
    for part in error["loc"]:
        if part in (table if isinstance(table, dict) else range(len(table)) if isinstance(table, list) else ()):
            table = table[part]
            keys.append(str(part))
    if error["type"] in (*UNKNOWN, *MISSING) and str(error["loc"][-1]) not in keys[-1:]:
        keys.append(str(error["loc"][-1]))
    return keys, table if keys else error["input"]


def _rule(text: str) -> str:
    for start in ("Input should be ", "Value error, "):
        text = text.removeprefix(start)
    return "a table" if text.startswith(("a dictionary", "a valid dictionary")) else text


def choose(registry: Any, value: Any, path: str, kind: type[Any]) -> Any:
    """A thing with settings of its own: given by its name, by a table with its name and settings, or as it is.

    registry: where names are looked up; path: the key, for errors; kind: what it must be.
    """
    if isinstance(value, kind):
        registry.name_of(type(value))  # the other side knows it by that
        return value
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise BadInput(f"{path} should be a name, or a table with a name and settings. Found {value!r}.")
    made, _ = build(registry[table["name"]], {k: v for k, v in table.items() if k != "name"}, path)
    if not isinstance(made, kind):
        raise BadInput(f"{path} = {table['name']!r} should be a {kind.__name__}. Found {type(made).__name__}.")
    return made


def as_table(registry: Any, thing: Any) -> Settings:
    """The table that `choose` makes the thing from."""
    adapter: TypeAdapter[Any] = TypeAdapter(type(thing))
    return {"name": registry.name_of(type(thing)), **adapter.dump_python(thing, mode="json", exclude_none=True)}
