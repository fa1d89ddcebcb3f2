"""Data that only the clients have: what the experiment says of it, for a model to be made and replies to be checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.data import Dataset, datasets

Whole = Annotated[int, Field(ge=1)]
ROWS = 100  # that the server supposes each client to have: enough for any fraction kept aside
Dtype = Literal["float32", "float64", "int64", "uint8"]
Kind = Annotated[int, Field(ge=2)] | Literal["binary", "squared"]


@datasets("nodes")
def nodes(
    *,
    clients: Whole,
    shape: list[Whole] | Annotated[Mapping[str, list[Whole]], Field(min_length=1)],
    objectives: Annotated[Mapping[str, Kind], Field(min_length=1)],
    dtype: Dtype | Mapping[str, Dtype] = "float32",
) -> Dataset:
    """Each client's own file, on Flower only. shape: of an example; objectives: 'binary', 'squared', or classes.

    Args:
        clients: how many there are; a run waits for them at its start.
        shape: of one example as the model gets it, such as [1, 28, 28]; by name, where it is a dict of arrays.
        objectives: by name, what is predicted: a number of classes, 'binary' for yes or no, 'squared' for a quantity.
        dtype: the type of examples as the model gets them; by name, where they differ.
    """
    n = clients * ROWS
    types = {} if isinstance(dtype, str) else dict(dtype)
    if types and (isinstance(shape, list) or not types.keys() <= shape.keys()):
        raise BadInput(f"data.dtype by name goes with data.shape of the same names. Found {sorted(types)}.")
    plain = dtype if isinstance(dtype, str) else "float32"
    x = (_rows(shape, plain, n) if isinstance(shape, list)
         else {name: _rows(one, types.get(name, plain), n) for name, one in shape.items()})  # fmt: skip
    targets = {name: _blank(kind, n) for name, kind in objectives.items()}
    losses = {name: "cross-entropy" if isinstance(kind, int) else kind for name, kind in objectives.items()}
    return Dataset(x, targets, tuple(Objective(name, loss) for name, loss in losses.items()))


def _rows(shape: list[int], dtype: str, n: int) -> NDArray[Any]:
    """As many examples as wanted, of which there is one in memory."""
    blank = np.zeros(shape, dtype=dtype)
    return np.lib.stride_tricks.as_strided(blank, (n, *shape), (0, *blank.strides))


def _blank(kind: int | str, n: int) -> np.ndarray:
    if isinstance(kind, int):
        return np.full(n, kind - 1, dtype=np.int64)  # the last class, so that a model has an output for each
    return np.zeros(n, dtype=np.int64 if kind == "binary" else np.float32)
