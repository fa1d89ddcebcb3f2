"""Fashion-MNIST with forty binary attributes: many objectives on one image, a free stand-in for CelebA.

Fifteen attributes follow from the class, twenty-five from the pixels. A pixel attribute is 1 above its median over
the training images (or at it, where the median is the largest value there is, as for the height). All of it is
integer arithmetic, so that the attributes are the same on every machine.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.mnist import FASHION, FASHION_SCALE, Images, images
from polyfed.data.store import cached, stored

Ints = NDArray[np.int64]
CHUNK = 10_000

CLASSES = {
    "t-shirt": {0}, "trouser": {1}, "pullover": {2}, "dress": {3}, "coat": {4}, "sandal": {5}, "shirt": {6},
    "sneaker": {7}, "bag": {8}, "ankle-boot": {9}, "upper-body": {0, 2, 4, 6}, "footwear": {5, 7, 9},
    "long-sleeved": {2, 4, 6}, "legs-or-whole": {1, 3}, "outerwear": {2, 4},
}  # fmt: skip
PIXELS = (
    *(f"cell-{row}-{column}" for row in range(4) for column in range(4)),
    "brightness", "contrast", "left-right", "top-bottom", "width", "height", "horizontal-edges", "vertical-edges",
    "centre",
)  # fmt: skip
NAMES = (*CLASSES, *PIXELS)
NINE = ("upper-body", "footwear", "long-sleeved", "trouser", "dress", "bag", "brightness", "width", "height")


@stored("fashion-attributes", FASHION)
def fashion_attributes(*, objectives: Literal["all", "groups", "nine"] = "all") -> Dataset:
    """Fashion-MNIST with 40 binary attributes: all, in five groups of eight, or the nine of the multi-model run.

    Args:
        objectives: an objective for each attribute ('all'), five of eight outputs each ('groups'), or nine ('nine').
    """
    clothes = images(FASHION)
    bits = cached(partial(_build, clothes), "fashion-attributes", clothes.files, version=1)["bits"]
    if objectives == "groups":
        targets = {f"group-{g + 1}": np.ascontiguousarray(bits[8 * g : 8 * g + 8].T) for g in range(5)}
    else:
        targets = {name: bits[NAMES.index(name)] for name in (NAMES if objectives == "all" else NINE)}
    binary = tuple(Objective(name, "binary") for name in targets)
    return Dataset(clothes.x, targets, binary, clothes.train, labels=clothes.y, prepare=FASHION_SCALE)


def _build(clothes: Images, folder: Path) -> None:
    of_class = np.stack([np.isin(clothes.y, list(members)) for members in CLASSES.values()])
    chunks = range(0, len(clothes.x), CHUNK)
    measured = np.concatenate([_measured(clothes.x[i : i + CHUNK, 0].astype(np.int64)) for i in chunks], 1)
    train = measured[:, : clothes.train]
    cut = np.minimum(np.median(train, 1), train.max(1) - 1)
    np.save(folder / "bits.npy", np.concatenate([of_class, measured > cut[:, None]]).astype(np.uint8))


def _measured(x: Ints) -> Ints:
    """The 25 quantities of each image, up to constant factors, one row each; a variance serves for its root."""
    n, side, _ = x.shape
    total, half, middle = x.sum((1, 2)), side // 2, slice(side // 2 - 4, side // 2 + 4)
    cells = x.reshape(n, 4, side // 4, 4, side // 4).sum((2, 4)).reshape(n, 16)
    others = [
        total,
        side * side * (x * x).sum((1, 2)) - total * total,
        abs(x[:, :, :half].sum((1, 2)) - x[:, :, half:].sum((1, 2))),
        abs(x[:, :half].sum((1, 2)) - x[:, half:].sum((1, 2))),
        _extent(x.max(1) > 0),
        _extent(x.max(2) > 0),
        (np.diff(x, axis=2) ** 2).sum((1, 2)),
        (np.diff(x, axis=1) ** 2).sum((1, 2)),
        x[:, middle, middle].sum((1, 2)),
    ]
    return np.stack([*cells.T, *others])


def _extent(on: NDArray[np.bool_]) -> Ints:
    """From the first to the last that is on, counting both; 0 where none is."""
    return np.where(on.any(1), on.shape[1] - on.argmax(1) - on[:, ::-1].argmax(1), 0)
