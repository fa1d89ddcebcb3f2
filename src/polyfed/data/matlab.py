"""Tasks in a MATLAB file, as MOCHA's authors and the federated multi-task repositories after them keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.data.store import reading

Tasks = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]


def cells(path: Path) -> Tasks:
    """X, y and the task of each row, of a file with two cell arrays: X{t}, n_t x d, and Y{t}, n_t labels."""
    with reading(path):
        xs, ys = _cells(path)
        if {len(x.shape) for x in xs} != {2} or [len(x) for x in xs] != [len(y) for y in ys]:
            raise ValueError("each task needs a matrix of rows, and a label for each")
        return np.concatenate(xs), np.concatenate(ys), np.repeat(np.arange(len(xs)), [len(x) for x in xs])


def _cells(path: Path) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found: dict[str, Any] = loadmat(path, variable_names=["X", "Y"])
        xs, ys = ([np.asarray(cell, dtype=np.float64) for cell in found[name].ravel()] for name in ("X", "Y"))
    except (MatReadError, NotImplementedError, TypeError) as error:  # its words for another kind of file
        raise ValueError(str(error)) from error
    return xs, [y.ravel() for y in ys]
