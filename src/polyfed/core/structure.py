"""Examples of any shape: one tensor, or dicts, tuples and lists of tensors, all with one row per example; or a source
that they are read from (`polyfed.core.source`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from polyfed.core.errors import BadInput, cut, shown
from polyfed.core.source import Joined, Source, Structure, lazy

Nested = Any  # a tensor, or a dict, tuple or list of such: types have no word for a tree


def leaves(x: Nested) -> list[Tensor]:
    """All tensors of a structure, in its order; a source has none."""
    return [x] if isinstance(x, Tensor) else [t for t in pytree.tree_leaves(x) if not isinstance(t, Source)]


def mapped(function: Callable[[Tensor], Tensor], x: Nested) -> Nested:
    """The same structure with every tensor replaced."""
    return function(x) if isinstance(x, Tensor) else pytree.tree_map(function, x)


def joined(parts: Sequence[Nested]) -> Nested:
    """The rows of several structures of one kind, one after another."""
    if any(isinstance(part, Source) for part in parts):
        return Joined(parts)
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return pytree.tree_map(lambda *some: torch.cat(some), *parts)


def length(x: Nested) -> int:
    """The number of rows, of which all tensors have as many."""
    return len(x) if isinstance(x, Tensor | Source) else len(pytree.tree_leaves(x)[0])


def tensors(values: Any, what: str = "x") -> Nested:
    """Arrays as tensors, in the structure they came in; every one has one row per example. With a source or a
    memory map among them they are one source.

    Args:
        values: an array, a tensor, a memory map or a source; or a dict, tuple or list of such.
        what: its name in an error.
    """
    made = _tensors(values, what)
    found = pytree.tree_leaves(made)
    if not found:
        raise BadInput(f"{what} should hold at least one array. Found {shown(values)}.")
    if len({len(t) for t in found}) > 1:
        raise BadInput(f"All arrays of {what} need one row per example. Found {shown([len(t) for t in found])} rows.")
    if not isinstance(made, Source) and any(isinstance(t, Source) for t in found):
        return Structure(made)
    return made


def _tensors(values: Any, what: str) -> Nested:
    if isinstance(values, Mapping):
        return {_key(name, what): _tensors(value, f"{what}[{name!r}]") for name, value in values.items()}
    if isinstance(values, tuple) or (isinstance(values, list) and _holds_arrays(values)):
        return tuple(_tensors(value, f"{what}[{i}]") for i, value in enumerate(values))
    source = lazy(values)
    return one_tensor(values, what) if source is None else source


def _holds_arrays(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(v, Tensor | Mapping | Source) or getattr(v, "ndim", 0) > 1 for v in values)


def _key(name: Any, what: str) -> str:
    if isinstance(name, str):
        return name
    raise BadInput(f"The names of the arrays of {what} should be texts. Found {shown(name)}.")


def one_tensor(values: Any, what: str = "Rows") -> Tensor:
    """An array of numbers as a tensor with rows."""
    try:
        made = values if isinstance(values, Tensor) else torch.from_numpy(_writeable(values))
        if made.dim():
            return made
        raise TypeError("one number is no row")
    except (TypeError, ValueError) as error:  # texts, objects, rows of unequal length
        found = getattr(values, "dtype", type(values).__name__)
        why = cut(str(error), 120)
        raise BadInput(f"{what} should be one array of numbers. Found {shown(found)} ({why}).") from error


def _writeable(values: Any) -> NDArray[Any]:
    """An array that torch may have: a copy of one that cannot be written to, a memory map's too."""
    array = np.asarray(values, order="C")
    return array if array.flags.writeable else array.copy()


def arguments(model: nn.Module, x: Nested) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a module is called with an example: a dict is passed as keywords and a tuple as positions, where its
    `forward` takes them so; else the structure is its one argument."""
    if isinstance(x, Tensor):
        return (x,), {}
    try:
        taken = inspect.signature(model.forward)
        if isinstance(x, Mapping):
            taken.bind(**x)
            return (), dict(x)
        taken.bind(*x)
        return tuple(x), {}
    except (TypeError, ValueError):
        return (x,), {}


def picked(outputs: Any, which: Any, whose: str) -> Any:
    """What a loss sees of a module's output.

    Args:
        outputs: a tensor, a dict, a tuple, a dataclass or a Hugging Face output.
        which: the key, attribute or position of it; several of them, which make a tuple; or a function of the output.
        whose: the objective, for an error.
    """
    if callable(which):
        return _applied(which, outputs, whose)
    if isinstance(which, tuple):
        return tuple(picked(outputs, one, whose) for one in which)
    try:
        if isinstance(which, int):
            return outputs[which]
        return outputs[which] if isinstance(outputs, Mapping) else getattr(outputs, which)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BadInput(
            f"Objective {whose!r} wants {which!r} of the module's output. Found {names_of(outputs)}."
        ) from None


def _applied(function: Callable[[Any], Any], outputs: Any, whose: str) -> Any:
    try:
        return function(outputs)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        why = cut(f"{type(error).__name__}: {error}", 120)
        raise BadInput(
            f"Objective {whose!r}: its function output= should take the module's output. Found {names_of(outputs)}, on "
            f"which it fails with {why}."
        ) from error


def by_name(outputs: Any, name: str, k: int, names: tuple[str, ...]) -> Any:
    """The output of objective k where it says nothing: that of its name, its place among as many, or the only one."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        only = [value for value in outputs.values() if isinstance(value, Tensor)]
        if name in outputs or len(only) != 1:
            return outputs.get(name)
        return only[0]
    if hasattr(outputs, name):
        return getattr(outputs, name)
    if isinstance(outputs, tuple | list) and len(outputs) == len(names):
        return outputs[k]
    if isinstance(outputs, tuple | list) and len(outputs) == 1:
        return outputs[0]
    return None


def names_of(outputs: Any) -> str:
    """What a module's output is called, for an error."""
    if isinstance(outputs, Mapping):
        return f"the keys {', '.join(map(str, sorted(outputs)))}"
    if isinstance(outputs, tuple | list):
        return f"{len(outputs)} outputs"
    fields = getattr(outputs, "__dataclass_fields__", None)
    return f"the fields {', '.join(fields)}" if fields else f"one {type(outputs).__name__}"
