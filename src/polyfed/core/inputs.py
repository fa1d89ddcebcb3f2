"""What the examples of a run look like: which arrays they have, of which shape and type, from which columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.structure import Nested

ONLY = "x"  # what an example's one array is called
Features = dict[str, tuple[str, ...]]  # by array: the columns of a table that it was made of


def by_path(x: Nested, path: str = "") -> dict[str, Any]:
    """The arrays of a structure, by their names: 'x', or 'tokens.ids' where dicts and tuples hold them."""
    inner = x.items() if isinstance(x, Mapping) else enumerate(x) if isinstance(x, tuple | list) else None
    if inner is None:
        return {path or ONLY: x}
    return {
        name: leaf for key, one in inner for name, leaf in by_path(one, f"{path}.{key}" if path else str(key)).items()
    }


def features_of(x: Any) -> Features:
    """The columns that inputs were made of: lists of names, or tables, in dicts and tuples; nothing for arrays."""
    if isinstance(x, str):
        return {ONLY: (x,)}
    if hasattr(x, "columns"):
        return {ONLY: tuple(map(str, x.columns))}
    if isinstance(x, list | tuple) and x and all(isinstance(name, str) for name in x):
        return {ONLY: tuple(x)}
    inner = x.items() if isinstance(x, Mapping) else enumerate(x) if isinstance(x, tuple) else ()
    found: Features = {}
    for key, one in inner:
        for name, columns in features_of(one).items():
            found[str(key) if name == ONLY and not isinstance(one, Mapping | tuple) else f"{key}.{name}"] = columns
    return found


@dataclass(frozen=True)
class Array:
    """One array of an example.

    Args:
        shape: of one row.
        type: of its numbers, as torch calls it without 'torch.'.
        columns: of the table that it was made of, where it was.
    """

    shape: tuple[int, ...]
    type: str
    columns: tuple[str, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.type)
        return found


@dataclass(frozen=True)
class Inputs:
    """The arrays of an example by name, and the structure that a model gets them in.

    Args:
        arrays: by name.
        structure: dicts and lists with the arrays' names in their places; 'x' for one array alone.
    """

    arrays: Mapping[str, Array]
    structure: Any = field(default=ONLY)

    @classmethod
    def of(cls, x: Nested, features: Mapping[str, tuple[str, ...]] | None = None) -> Inputs:
        """From some rows, and the columns that they came from."""
        names = features or {}
        arrays = {
            name: Array(tuple(t.shape[1:]), str(t.dtype).removeprefix("torch."), tuple(names.get(name, ())))
            for name, t in by_path(x).items()
        }
        return cls(arrays, _names(x))

    def table(self) -> dict[str, Any]:
        """As a file has it."""
        every = {
            name: {"shape": list(a.shape), "type": a.type, **({"columns": list(a.columns)} if a.columns else {})}
            for name, a in self.arrays.items()
        }
        nested = {} if self.structure == ONLY else {"structure": json.dumps(self.structure)}
        return {**nested, "arrays": every}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Inputs:
        """From what `table` gave."""
        try:
            arrays = {
                str(name): Array(
                    tuple(map(int, one["shape"])), str(one["type"]), tuple(map(str, one.get("columns", ())))
                )
                for name, one in table["arrays"].items()
            }
            structure = json.loads(table["structure"]) if "structure" in table else ONLY
            if not all(isinstance(a.dtype, torch.dtype) for a in arrays.values()):
                raise ValueError("no type")
            made = cls(arrays, structure)
            made.joined({name: torch.zeros(0) for name in arrays})
            return made
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise BadInput(
                "What the run's experiment.toml says of the inputs cannot be read; see started.toml."
            ) from error

    def joined(self, arrays: Mapping[str, Tensor]) -> Nested:
        """Arrays by name in the structure that a model gets."""

        def put(place: Any) -> Any:
            if isinstance(place, dict):
                return {key: put(one) for key, one in place.items()}
            return tuple(put(one) for one in place) if isinstance(place, list) else arrays[place]

        return put(self.structure)

    def checked(self, given: Mapping[str, NDArray[Any] | Tensor]) -> dict[str, Tensor]:
        """Arrays by name as the run's data were, or a sentence: other arrays, shapes of rows or kinds of numbers."""
        if len(self.arrays) == 1 and len(given) == 1:
            given = dict(zip(self.arrays, given.values(), strict=True))
        for name in self.arrays:
            if name not in given:
                raise BadInput(f"The data should have the array {shown(name)}.{nearest(name, given)}")
        made = {name: _fitting(name, given[name], wanted) for name, wanted in self.arrays.items()}
        if len({len(t) for t in made.values()}) > 1:
            found = {name: len(t) for name, t in made.items()}
            raise BadInput(f"All arrays need one row per example. Found {shown(found)} rows.")
        return made


def _names(x: Nested, path: str = "") -> Any:
    if isinstance(x, Mapping):
        return {str(key): _names(one, f"{path}.{key}" if path else str(key)) for key, one in x.items()}
    if isinstance(x, tuple | list):
        return [_names(one, f"{path}.{key}" if path else str(key)) for key, one in enumerate(x)]
    return path or ONLY


def _fitting(name: str, given: NDArray[Any] | Tensor, wanted: Array) -> Tensor:
    try:
        found = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given, order="C"))
    except TypeError as error:
        raise BadInput(f"{shown(name)} should be numbers. Found {shown(getattr(given, 'dtype', given))}.") from error
    if tuple(found.shape[1:]) != wanted.shape or not found.dim():
        raise BadInput(
            f"Rows of {shown(name)} should have the shape {wanted.shape}, as the run's data had. Found "
            f"{tuple(found.shape[1:]) if found.dim() else 'one number'}."
        )
    if found.dtype != wanted.dtype and not _casts(found, wanted.dtype):
        raise BadInput(
            f"{shown(name)} should be of type {wanted.type}, as the run's data were. Found {found.dtype}, which does "
            "not go into it without loss."
        )
    return found.to(wanted.dtype)


def _casts(found: Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers stay what they are: floats of another precision, whole numbers that fit."""
    if dtype.is_floating_point:
        return not found.is_complex()
    return not found.is_complex() and bool((found == found.to(dtype)).all())
