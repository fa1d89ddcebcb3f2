"""Base classes whose methods users override: a misspelt or ill-shaped hook is an error when the class is made."""

from __future__ import annotations

import difflib
import inspect
from typing import Any


def check_hooks(cls: type[Any], base: type[Any]) -> None:
    """Refuse a public name that is nearly one of the base's, and a method of another signature."""
    hooks = {name: value for name, value in vars(base).items() if name[0] != "_"}
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if name in hooks:
            if inspect.isfunction(value) and inspect.isfunction(hooks[name]):
                _check_signature(cls, name, value, hooks[name])
        elif near := difflib.get_close_matches(name, hooks, n=1, cutoff=0.82):
            raise TypeError(
                f"{cls.__name__}.{name} is nearly called like the hook {near[0]!r} of {base.__name__}; "
                "name it so, or choose a name that is less alike."
            )


def _check_signature(cls: type[Any], name: str, own: Any, hook: Any) -> None:
    wanted = [p for p in inspect.signature(hook).parameters.values() if p.kind is not p.VAR_KEYWORD]
    try:
        inspect.signature(own).bind(*wanted)
    except TypeError:
        names = ", ".join(p.name for p in wanted)
        found = ", ".join(inspect.signature(own).parameters)
        raise TypeError(f"{cls.__name__}.{name} should take ({names}). Found ({found}).") from None
