"""Whether a reply is what was asked for: its names, shapes and types, and finite numbers. Nothing else is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfed.core.client import all_finite
from polyfed.core.schema import Schema

if TYPE_CHECKING:
    from polyfed.core.fleet import Stack


def validate_replies(stack: Stack, schema: Schema) -> Stack:
    """The stack without replies that are not what was asked for, or not finite; those are named."""
    bad = _unlike(stack, schema) or _not_finite(stack)
    return stack.drop(bad) if bad else stack


def _unlike(stack: Stack, schema: Schema) -> dict[int, str]:
    why = ""
    if len(stack.clients) and set(stack.arrays) != set(schema):
        why = f"the reply should hold {sorted(schema)}; found {sorted(stack.arrays)}"
    for name, a in stack.arrays.items() if not why else ():
        shape, dtype = schema[name]
        if a.shape[1:] != shape or a.dtype != dtype:
            why = f"{name!r} should be {dtype} of shape {shape}; found {a.dtype} of shape {tuple(a.shape[1:])}"
    return dict.fromkeys(stack.clients, why) if why else {}


def _not_finite(stack: Stack) -> dict[int, str]:
    if all_finite(*stack.arrays.values()):
        return {}
    bad = {}
    for name, a in stack.arrays.items():
        if not all_finite(a):
            for i, client in enumerate(stack.clients):
                if not all_finite(a[i]):
                    bad[client] = f"{name!r} holds NaN or infinity"
    return bad
