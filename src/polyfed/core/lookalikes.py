"""Values that would pass for others: "0.1" and true for numbers, 1 for true, NaN for a number. None is ever meant."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator

from polyfed.core.errors import cut, shown

LARGEST = 2**63


class Wrong(NamedTuple):
    """A value that is not what it should be: its keys, the value, the rule."""

    keys: tuple[str, ...]
    found: Any
    rule: str

    def sentence(self, path: str) -> str:
        """The rule, what was found."""
        key = ".".join([path, *self.keys] if path else self.keys)
        return f"{cut(key, 80)} should be {self.rule}. Found {shown(self.found)}."


class _Elsewhere(Exception):
    """The value is of another kind than this branch of a union: not for us to judge."""


def lookalike(hints: Mapping[str, Any], values: Mapping[str, Any]) -> Wrong | None:
    """The first of some values that a validator would make something else of, by the types they should have."""
    if not isinstance(values, Mapping):
        return None
    every = ((key, hints[key], value) for key, value in values.items() if key in hints)
    return next((wrong for key, hint, value in every if (wrong := _union(hint, value, (str(key),)))), None)


def _union(hint: Any, value: Any, keys: tuple[str, ...]) -> Wrong | None:
    """Nothing is wrong if one branch takes the value as it is, or if all leave it to the validator."""
    found: Wrong | None = None
    for branch in _branches(hint):
        try:
            wrong = _one(branch, value, keys)
        except _Elsewhere:
            continue
        if wrong is None:
            return None
        found = found or wrong
    return None if found and _a_word(hint, value) else found


def _a_word(hint: Any, value: Any) -> bool:
    """Whether a text is no number, where some texts are meant: the validator names those."""
    literals = (typing.get_args(b) for b in _branches(hint) if typing.get_origin(b) is Literal)
    if not isinstance(value, str) or not any(isinstance(one, str) for those in literals for one in those):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def _branches(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _branches(part)
    else:
        yield hint


def _one(hint: Any, value: Any, keys: tuple[str, ...]) -> Wrong | None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        own = [note.func for note in arguments[1:] if isinstance(note, BeforeValidator)]
        if all(getattr(reads, "__module__", "") == "polyfed.core.settings" for reads in own):
            return _union(arguments[0], value, keys)
        _taken(not isinstance(value, bool | int | float))  # a validator of its own may read texts and tables
        return None
    if hint in (bool, int, float):
        return _number(hint, value, keys)
    if origin is Literal:
        _taken(any(type(value) is type(one) and value == one for one in arguments))
        return None
    if origin in (list, tuple, Sequence):
        return _listed(arguments, value, keys)
    if origin in (dict, Mapping):
        _taken(isinstance(value, Mapping))
        return _within(keys, lookalike(dict.fromkeys(value, arguments[1] if len(arguments) > 1 else Any), value))
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        names = {field.name for field in dataclasses.fields(hint)}
        _taken({*value} <= names)
        return _within(keys, lookalike(typing.get_type_hints(hint, include_extras=True), value))
    _taken(hint is Any or (isinstance(hint, type) and isinstance(value, hint)))
    return None


def _number(kind: type[Any], value: Any, keys: tuple[str, ...]) -> Wrong | None:
    if kind is bool:
        _taken(isinstance(value, bool | int | float | str))
        return None if isinstance(value, bool) else Wrong(keys, value, "true or false")
    _taken(not isinstance(value, list | tuple | Mapping | None.__class__))
    if isinstance(value, bool | str):
        return Wrong(keys, value, "a valid integer" if kind is int else "a valid number")
    if isinstance(value, float) and not math.isfinite(value):
        return Wrong(keys, value, "a valid integer" if kind is int else "a finite number")
    if isinstance(value, int) and abs(value) >= LARGEST:
        return Wrong(keys, value, "a number of at most 63 bits")
    return None


def _listed(hints: tuple[Any, ...], value: Any, keys: tuple[str, ...]) -> Wrong | None:
    _taken(isinstance(value, list | tuple))
    if not hints:
        return None
    several = len(hints) > 1 and hints[1] is not Ellipsis
    each = zip(hints, value, strict=False) if several else ((hints[0], one) for one in value)
    found = (_union(hint, one, (*keys, str(i))) for i, (hint, one) in enumerate(each))
    return next((wrong for wrong in found if wrong), None)


def _within(keys: tuple[str, ...], wrong: Wrong | None) -> Wrong | None:
    return wrong and wrong._replace(keys=(*keys, *wrong.keys))


def _taken(fits: bool) -> None:
    if not fits:
        raise _Elsewhere
