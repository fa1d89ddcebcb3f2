"""Columns as people have them, NumPy's, pandas' or polars': numbers, truths, texts and categories, some missing.

pandas is not imported: what a column is shows in what it can do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.aligning import aligned, index_of, label_at
from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.federation import MISSING
from polyfed.core.owners import absent
from polyfed.core.structure import Nested, length, one_tensor, tensors

Classes = dict[str, tuple[str, ...]]  # by target or column: what its numbers 0, 1, ... stand for


@dataclass(frozen=True)
class Texts:
    """A column of texts: None where one is missing; order: that of the categories, where they have one."""

    values: NDArray[Any]
    order: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


Column = Tensor | Texts


def is_frame(values: Any) -> bool:
    """Whether it is a table with named columns."""
    return hasattr(values, "columns") and hasattr(values, "shape") and hasattr(values, "__getitem__")


def columns_of(frame: Any) -> list[str]:
    """The names of a table's columns."""
    for name in (names := list(frame.columns)):
        if not isinstance(name, str):
            raise BadInput(f"The columns of a table should have texts as names. Found {shown(name)}.")
    return names


def column_of(frame: Any, name: Any) -> Any:
    """A column by its name."""
    names = columns_of(frame)
    if name not in names:
        raise BadInput(f"The table has no column {shown(name)}.{nearest(str(name), names)}")
    if names.count(name) > 1:
        raise BadInput(f"The table has {names.count(name)} columns {shown(name)}; rename them.")
    return frame[name]


def read(values: Any, what: str) -> Column:
    """A column, or a table of columns, of numbers or texts: NaN or None where something is missing.

    Args:
        values: an array, a Series, a list or a tensor; several columns of numbers become a matrix.
        what: its name in an error.
    """
    if isinstance(values, Tensor | Texts):
        return values
    if is_frame(values):
        return torch.from_numpy(_matrix(values, columns_of(values)))
    array, order = _array(values)
    if array is None or array.dtype.kind not in "OUS" or array.ndim != 1:
        return one_tensor(values if array is None else array, what)
    gone = np.array([absent(value) for value in array], dtype=bool)
    kinds = {type(value) for value in array[~gone]}
    if array.dtype != object or kinds == {str} or (not kinds and order):
        texts = array.astype(object)
        texts[gone] = None
        return Texts(texts, order)
    if all(issubclass(kind, bool | int | float | np.number | np.bool_) for kind in kinds):
        return torch.from_numpy(np.array([np.nan if g else float(v) for v, g in zip(array, gone, strict=True)]))
    found = sorted(kind.__name__ for kind in kinds)
    raise BadInput(f"{what} should be numbers or texts. Found {shown(found)}; make numbers of them first.")


def _array(values: Any) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """As NumPy has it, and the order of a text's categories; nothing where NumPy has no array for it."""
    kind = getattr(values, "dtype", None)
    categories = getattr(kind, "categories", None)
    order = tuple(categories) if categories is not None and all(isinstance(c, str) for c in categories) else ()
    plain = getattr(kind, "numpy_dtype", None)  # pandas' own numbers, with NA among them
    if plain is not None and np.dtype(plain).kind in "biuf":
        some = bool(values.isna().any())
        array = values.to_numpy(dtype=np.float64, na_value=np.nan) if some else values.to_numpy(dtype=plain)
        return _own(array), ()
    try:
        return _own(np.asarray(values)), order
    except ValueError:  # rows of unequal length
        return None, ()


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """An array that may be written to: pandas lends what it has for reading only."""
    return array if array.flags.writeable or isinstance(array, np.memmap) else array.copy()


def encoded(parts: Sequence[Column], what: str) -> tuple[list[Tensor], tuple[str, ...]]:
    """Columns of one kind as tensors, texts as numbers of their classes; and the classes.

    Args:
        parts: the first is that of the training rows.
        what: its name in an error.
    """
    texts = [part for part in parts if isinstance(part, Texts)]
    if not texts:
        return [part for part in parts if isinstance(part, Tensor)], ()
    if len(texts) < len(parts):
        raise BadInput(f"{what} should be texts everywhere or numbers everywhere. Found both.")
    order = texts[0].order or tuple(sorted({value for part in texts for value in part.values if value is not None}))
    number: dict[Any, int] = {name: i for i, name in enumerate(order)}
    for value in (value for part in texts for value in part.values if value is not None and value not in number):
        raise BadInput(f"{what} should be one of {shown(list(order))}. Found {shown(value)}.")
    return [torch.tensor([number.get(value, MISSING) for value in part.values]) for part in texts], order


# inputs


def inputs(x: Any, *, whole: bool) -> Nested:
    """Arrays as tensors, in the structure they came in; a table becomes a matrix of its columns.

    Args:
        x: an array or a table; or a dict, tuple or list of such.
        whole: whether a table may not lack a value.
    """

    def plain(values: Any) -> Any:
        if is_frame(values):
            return features(values, columns_of(values), whole=whole)
        if isinstance(values, Mapping):
            return {name: plain(value) for name, value in values.items()}
        return tuple(plain(value) for value in values) if isinstance(values, tuple) else values

    return tensors(plain(x))


def chosen(frame: Any, x: Any, of: Callable[[int], str], *, whole: bool) -> Nested:
    """The inputs that a table's columns make: a list of them a matrix of floats, one alone a vector of its own type."""
    if isinstance(x, Mapping):
        return {str(name): chosen(frame, some, of, whole=whole) for name, some in x.items()}
    if isinstance(x, str):
        made = _column(frame, x)
        if whole and made.is_floating_point() and not bool(torch.isfinite(made).all()):
            _refuse_gaps(frame, [x], made.reshape(len(made), -1).numpy(), of)
        return made
    if not isinstance(x, list | tuple) or not x:
        raise BadInput(f"x should be a list of columns, or a dict of such lists by input. Found {shown(x)}.")
    return features(frame, list(x), of, whole=whole)


def features(frame: Any, names: list[str], of: Callable[[int], str] | None = None, *, whole: bool) -> Tensor:
    """Columns of numbers as a matrix.

    Args:
        frame: the table.
        names: of its columns.
        of: from a row to whose it is, for an error.
        whole: whether no value may be missing.
    """
    made = _matrix(frame, names)
    if whole and not np.isfinite(made.sum(dtype=np.float64)):
        _refuse_gaps(frame, names, made, of)
    return torch.from_numpy(made)


def _refuse_gaps(frame: Any, names: list[str], made: NDArray[Any], of: Callable[[int], str] | None) -> None:
    for place, name in enumerate(names):
        wrong = np.flatnonzero(~np.isfinite(made[:, place]))
        if len(wrong):
            row, whose = int(wrong[0]), "" if of is None else f", of {of(int(wrong[0]))}"
            label = shown(label_at(index_of(frame), row))
            raise BadInput(
                f"The inputs should be finite numbers. Found {made[row, place]} in column {name!r}, row {label}"
                f"{whose} ({len(wrong)} in all); fill them, or leave the rows out: df.dropna(subset=[{name!r}])."
            )


def _matrix(frame: Any, names: list[str]) -> NDArray[Any]:
    """Columns of numbers side by side, in a type that holds all of them, float32 at least."""
    columns = [_numbers(frame, name) for name in names]
    made = np.empty((len(frame), len(names)), dtype=np.result_type(np.float32, *(column.dtype for column in columns)))
    for place, column in enumerate(columns):
        made[:, place] = column
    return made


def _numbers(frame: Any, name: str) -> NDArray[Any]:
    values = _column(frame, name)
    if values.dim() != 1:
        raise BadInput(f"The column {name!r} needs one number a row. Found rows of {tuple(values.shape[1:])}.")
    return np.asarray(values)


def _column(frame: Any, name: str) -> Tensor:
    """A column of numbers; dates and texts are no inputs."""
    values = column_of(frame, name)
    if hasattr(values, "dt") and "date" in str(getattr(values, "dtype", "")).lower():
        raise BadInput(
            f"Inputs should be numbers. Found dates in column {name!r}; make numbers of it first: "
            f"df[{name!r}] = (df[{name!r}] - df[{name!r}].min()).dt.total_seconds()."
        )
    made = read(values, f"The column {name!r}")
    if isinstance(made, Texts):
        raise _text(name)
    return made


def _text(name: str) -> BadInput:
    return BadInput(
        f"Inputs should be numbers. Found texts in column {name!r}; make columns of 0 and 1 of it first: "
        f"df = pandas.get_dummies(df, columns=[{name!r}])."
    )


# rows


@dataclass(frozen=True)
class Table:
    """Some rows: x, the targets by objective, and more columns by name; held: the objectives of their client, where it
    may lack some of the others'; index: the rows' labels, where a table has them."""

    x: Nested
    targets: Mapping[str, Column]
    columns: Mapping[str, Column]
    held: Collection[str] | None = None
    index: Any = None

    @classmethod
    def of(cls, x: Any, targets: Any, columns: Any = None, *, whole: bool = True) -> Table:
        """From what people have; whole: whether x may not lack a value."""
        index = index_of(x)
        x, targets, columns = (
            aligned(given, index, what) for given, what in ((x, "x"), (targets, "targets"), (columns, "columns"))
        )
        return cls(inputs(x, whole=whole), _by_name(targets, "targets"), _by_name(columns, "columns"), index=index)

    def __post_init__(self) -> None:
        for kind in ("targets", "columns"):
            for name, values in getattr(self, kind).items():
                if len(values) != len(self):
                    raise BadInput(
                        f"{kind.capitalize()} need one row per example: {name or kind!r} has {len(values)}, x has "
                        f"{len(self)}."
                    )

    def __len__(self) -> int:
        return length(self.x)


def _by_name(given: Any, what: str) -> dict[str, Column]:
    """Columns by name: of a dict, or of a table; one array alone is called ''."""
    if given is None:
        return {}
    if isinstance(given, Mapping) or is_frame(given):
        names = columns_of(given) if is_frame(given) else list(given)
        return {name: read(given[name], f"{what}[{name!r}]") for name in names}
    if what == "columns":
        raise BadInput(f"columns should be a dict of arrays by name. Found {shown(given)}.")
    return {"": read(given, what)}
