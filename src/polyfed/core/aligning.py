"""Columns of one table belong together by the labels of its rows, as in pandas, and not by where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput


def index_of(x: Any) -> Any:
    """The labels of the rows, of the first table or Series in a structure; None where there is none."""
    found = getattr(x, "index", None)
    if hasattr(found, "get_indexer"):  # a list has an `index`, too
        return found
    inner = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple) else ()
    return next((index for one in inner if (index := index_of(one)) is not None), None)


def aligned(values: Any, index: Any, what: str) -> Any:
    """A Series or a table with its rows in the order of an index; anything else as it is.

    Args:
        values: one column, a table, or a structure of such.
        index: the labels of x's rows; None where it has none.
        what: the values' name in an error.
    """
    if index is None:
        return values
    if isinstance(values, Mapping):
        return {name: aligned(one, index, f"{what}[{name!r}]") for name, one in values.items()}
    if isinstance(values, tuple):
        return tuple(aligned(one, index, what) for one in values)
    own: Any = getattr(values, "index", None)
    if not hasattr(own, "get_indexer") or own.equals(index):
        return values
    places = own.get_indexer(index) if own.is_unique and index.is_unique and len(own) == len(index) else None
    if places is None or (places < 0).any():
        raise BadInput(
            f"{what} should have the row labels (index) of x's table, each once. Found others, {len(own)} labels for "
            f"{len(index)} rows; where its rows stand in the order of the table, give {what}=values.to_numpy()."
        )
    return values.iloc[places]


def labels_of(index: Any) -> NDArray[Any]:
    """An index as an array; what NumPy calls otherwise, as dates, stays as pandas has it."""
    labels = np.asarray(index)
    return labels if labels.dtype.kind in "biuf" else np.asarray(index, dtype=object)


def label_at(index: Any, row: int) -> Any:
    """What a row is called in an error: its label, or its number where there is no index; no type of NumPy's."""
    label = row if index is None else index[row]
    return label.item() if isinstance(label, np.generic) else label
