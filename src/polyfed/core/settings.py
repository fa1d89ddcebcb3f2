"""Checking tables of settings against the functions and classes they are for, with errors that name the key."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo

from polyfed.core.errors import BadInput, cut, nearest, shown
from polyfed.core.lookalikes import lookalike

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
            raise BadInput(f"{made.__name__}: settings are given by name. Found {shown(arguments[0])} without one.")
        if wrong := lookalike(_hints(made), values):
            raise BadInput(f"{made.__name__}: {wrong.sentence('')}")
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


def knows(factory: Callable[..., Any], key: str, given: typing.Collection[str] = ()) -> bool:
    """Whether a factory has a setting of this name, or takes any."""
    return key in accepts(factory, given) or any(
        p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values()
    )


def takes(factory: Callable[..., Any], key: str, value: Any, given: typing.Collection[str] = ()) -> bool:
    """Whether a factory's setting may have this value, as far as that can be said without the others."""
    try:
        check(lambda: _model(factory, given)(**{key: value}), {key: value}, "", (), _hints(factory))
    except BadInput as error:
        cause = error.__cause__
        return isinstance(cause, ValidationError) and not any(e["loc"][:1] == (key,) for e in cause.errors())
    return True


def build(factory: Callable[..., Any], table: Settings, path: str, **given: Any) -> tuple[Any, Settings]:
    """Call a factory with a validated table; returns what it made and the table with all defaults filled in.

    `given` are arguments the system provides; a factory gets those it has parameters for.
    """
    if hasattr(factory, "__pydantic_validator__"):
        kind: Any = factory
        if unknown := next((key for key in table if key not in accepts(factory)), None):  # pydantic may ignore it
            raise BadInput(f"Unknown key {shown(f'{path}.{unknown}')}.{nearest(unknown, accepts(factory))}")
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        made = check(lambda: adapter.validate_python(table), table, path, accepts(factory), _hints(factory))
        return made, adapter.dump_python(made, mode="json", exclude_none=True)
    ours = {name: value for name, value in given.items() if name in inspect.signature(factory).parameters}
    values, resolved = arguments(factory, table, path, ours)
    return factory(**ours, **values), resolved


def arguments(
    factory: Callable[..., Any], table: Settings, path: str, given: typing.Collection[str]
) -> tuple[Settings, Settings]:
    """A function's arguments from a table, validated; and as plain values, defaults filled in."""
    values = check(lambda: _model(factory, given)(**table), table, path, accepts(factory, given), _hints(factory))
    given_too = values.model_extra or {}
    return {**{name: getattr(values, name) for name in type(values).model_fields}, **given_too}, _plain(values)


def _plain(values: Any) -> Settings:
    dumped: Settings = values.model_dump(mode="json", exclude_none=True)
    return dumped


def _model(factory: Callable[..., Any], given: typing.Collection[str]) -> Any:
    """A pydantic model of a function's own parameters."""
    hints = _hints(factory)
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


def _hints(factory: Any) -> dict[str, Any]:
    """The types of a function's parameters, or of a class's fields."""
    try:
        if inspect.isclass(factory) and not hasattr(factory, "__dataclass_fields__"):
            factory = factory.__init__
        return typing.get_type_hints(factory, include_extras=True)
    except NameError:  # annotations that exist for a type checker only
        return {}


def check(
    validate: Callable[[], Any],
    table: Settings,
    path: str,
    known: typing.Collection[str],
    hints: Mapping[str, Any] | None = None,
) -> Any:
    """Run a validation; its first complaint becomes one sentence that names the key, the value and the rule.

    Args:
        validate: makes the thing.
        table: what it is made from.
        path: the table's own key.
        known: the keys there are; of a `Table`, its fields.
        hints: their types.
    """
    fields = known.items() if isinstance(known, Mapping) else ()
    hints = {name: f.annotation for name, f in fields if isinstance(f, FieldInfo)} if hints is None else hints
    if wrong := lookalike(hints, table):
        raise BadInput(wrong.sentence(path))
    try:
        return validate()
    except ValidationError as error:
        raise BadInput(_sentence(error, table, path, known)) from error
    except (OverflowError, RecursionError) as error:
        raise BadInput(f"{path or 'A setting'} cannot be read: {cut(str(error))}.") from error


def _sentence(error: ValidationError, table: Settings, path: str, known: typing.Collection[str]) -> str:
    meant = _meant(error.errors(), table)
    first = max(meant, key=lambda e: len(_place(e, table)[0]))
    keys, found = _place(first, table)
    name = ".".join(keys)
    key = cut(".".join(part for part in (path, name) if part), 80)
    if first["type"] in UNKNOWN:
        return f"Unknown key {key!r}.{nearest(name, known) if len(keys) == 1 else ''}"
    if first["type"] in MISSING:
        return f"The key {key!r} is needed and was not given."
    if first["type"] == "union_tag_invalid":
        tag, tags = first["ctx"]["tag"], first["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"Unknown {key}.name {shown(tag)}.{nearest(tag, tags)}"
    if first["type"] == "union_tag_not_found":
        return f"The key '{key}.name' is needed and was not given."
    if first["type"] == "value_error" and not name:
        return f"{path}: {_rule(first['msg'])}" if path else _rule(first["msg"])
    rules = [e["msg"] for e in meant if _place(e, table)[0] == keys]
    return f"{key} should be {cut(' or '.join(dict.fromkeys(map(_rule, rules))))}. Found {shown(found)}."


def _meant(errors: list[Any], table: Settings) -> list[Any]:
    """Of a union's branches, those that were meant: where the fewest keys are missing or unknown, and the type fits."""
    branches: dict[tuple[Any, ...], list[Any]] = {}
    for error in errors:
        branches.setdefault(_branch(error, table), []).append(error)
    place = len(next(iter(branches))) - 1  # all of the first union's
    same = {label: found for label, found in branches.items() if label[:place] == next(iter(branches))[:place]}
    inside = isinstance(_place(errors[0], table)[1], dict)
    deep = {label: found for label, found in same.items() if inside and any(len(e["loc"]) > len(label) for e in found)}
    misfits = {label: sum(_misfit(e) for e in found) for label, found in (deep or same).items()}
    return [e for label, n in misfits.items() if n == min(misfits.values()) for e in same[label]]


def _branch(error: Any, table: Any) -> tuple[Any, ...]:
    """The place of an error up to the name that pydantic gives a branch of a union."""
    for i, part in enumerate(error["loc"]):
        if part not in (table if isinstance(table, dict) else range(len(table)) if isinstance(table, list) else ()):
            return tuple(error["loc"][: i + 1])
        table = table[part]
    return (*error["loc"], "")


def _misfit(error: Any) -> bool:
    kind = error["type"]
    return (
        kind in (*UNKNOWN, *MISSING) or kind.endswith(("_type", "_parsing", "_from_float")) or kind == "is_instance_of"
    )


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
        raise BadInput(f"{path} should be a name, or a table with a name and settings. Found {shown(value)}.")
    made, _ = build(registry[table["name"]], {k: v for k, v in table.items() if k != "name"}, path)
    if not isinstance(made, kind):
        raise BadInput(f"{path} = {shown(table['name'])} should be a {kind.__name__}. Found {type(made).__name__}.")
    return made


def as_table(registry: Any, thing: Any) -> Settings:
    """The table that `choose` makes the thing from."""
    adapter: TypeAdapter[Any] = TypeAdapter(type(thing))
    return {"name": registry.name_of(type(thing)), **adapter.dump_python(thing, mode="json", exclude_none=True)}
