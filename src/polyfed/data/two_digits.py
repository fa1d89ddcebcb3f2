"""Two handwritten digits in one image: two tasks that compete for one network. Ships with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.keys import generator
from polyfed.core.problem import Objective
from polyfed.core.room import check_room
from polyfed.data import Dataset, datasets


@datasets("two-digits")
def two_digits(
    *,
    seed: int,
    examples: Annotated[int, Field(ge=1)] = 10_000,
    overlap: Annotated[int, Field(ge=0, le=8)] = 2,
) -> Dataset:
    """Two 8x8 digits side by side, overlapping by some columns; objectives 'left' and 'right'.

    Args:
        examples: pairs for the clients; a fifth as many, of other digits, are the server's test data.
        overlap: columns that the digits share; 0 for none, 8 for one digit on top of the other.
    """
    check_room(200 * examples, "data.examples")
    images, labels = _digits()
    rng = generator(seed, "two-digits")
    order = rng.permutation(len(images))
    test = len(images) // 5  # whole digits are held out, not only pairs of them
    parts = [_pairs(order[test:], examples, rng), _pairs(order[:test], max(examples // 5, 1), rng)]
    left, right = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    return Dataset(
        x=_side_by_side(images[left], images[right], overlap)[:, None],
        targets={"left": labels[left], "right": labels[right]},
        objectives=(Objective("left", "cross-entropy"), Objective("right", "cross-entropy")),
        train=examples,
        labels=10 * labels[left] + labels[right],
    )


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The 1,797 digits and what they are; read from scikit-learn's file, as to import it takes seconds."""
    found = find_spec("sklearn")
    where = Path(str(found.origin)).parent if found is not None else Path()
    file = where / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
    else:  # a version that keeps it elsewhere
        from sklearn.datasets import load_digits

        table = np.column_stack(load_digits(return_X_y=True))
    return (table[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32), table[:, -1].astype(np.int64)


def _pairs(among: NDArray[np.int64], n: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return rng.choice(among, n), rng.choice(among, n)


def _side_by_side(left: NDArray[np.float32], right: NDArray[np.float32], overlap: int) -> NDArray[np.float32]:
    canvas = np.zeros((len(left), 8, 16 - overlap), dtype=np.float32)
    canvas[:, :, :8] = left
    np.maximum(canvas[:, :, 8 - overlap :], right, out=canvas[:, :, 8 - overlap :])
    return canvas
