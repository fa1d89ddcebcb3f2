"""Settings of a callback, checked when it is made in Python as they are in an experiment."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from polyfed.core.errors import BadInput, shown
from polyfed.core.settings import arguments

T = TypeVar("T")


def checked(cls: type[T]) -> type[T]:
    """Class decorator: what `__init__` is given, by name, has the types that its annotations say."""
    initialise: Any = cls.__init__

    @functools.wraps(initialise)
    def check(self: Any, *unnamed: Any, **values: Any) -> None:
        if unnamed:
            raise BadInput(f"{cls.__name__}: settings are given by name. Found {shown(unnamed[0])} without one.")
        initialise(self, **arguments(cls, values, cls.__name__, ())[0])

    setattr(cls, "__init__", check)  # noqa: B010 (a plain assignment is refused by type checkers)
    return cls
