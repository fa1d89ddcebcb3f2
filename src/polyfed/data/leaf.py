"""FEMNIST, the federated EMNIST of LEAF (Caldas et al. 2018): characters by the people who wrote them, in 62 classes.

Reads what LEAF's preprocess.sh writes: train/*.json and test/*.json, each {"user_data": {user: {"x": ..., "y": ...}}}.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.prepare import scaled
from polyfed.data.store import File, Source, cached, reading, stored

FEMNIST = Source(
    "femnist",
    "femnist",
    (File("train"), File("test")),
    "make it with github.com/TalwalkarLab/leaf (in data/femnist: ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample) "
    "and put its data/train and data/test",
)
SCALE = partial(scaled, mean=(0.9637,), std=(0.1597,))  # ink is 0, paper 1

Bytes = NDArray[np.uint8]


@stored("femnist", FEMNIST)
def femnist() -> Dataset:
    """Handwritten characters, 28x28, in 62 classes; objective 'character'; key 'user'."""
    files = [sorted(folder.glob("*.json")) for folder in FEMNIST.paths()]
    if not all(files):
        raise BadInput(f"The data set 'femnist' needs .json files in train/ and in test/; {FEMNIST.remedy()}.")
    made = cached(partial(_build, files), "femnist", [path for split in files for path in split], version=1)
    return Dataset(
        x=made["x"],
        targets={"character": made["y"]},
        objectives=(Objective("character", "cross-entropy"),),
        train=int(made["train"][0]),
        labels=made["y"],
        keys={"user": made["user"]},
        prepare=SCALE,
    )


def _build(files: list[list[Path]], folder: Path) -> None:
    numbers: dict[str, int] = {}
    splits = [[part for path in split for part in _users(path, numbers)] for split in files]
    parts = [part for split in splits for part in split]
    np.save(folder / "x.npy", np.concatenate([x for x, _, _ in parts]))
    np.save(folder / "y.npy", np.concatenate([y for _, y, _ in parts]))
    np.save(folder / "user.npy", np.repeat([user for _, _, user in parts], [len(y) for _, y, _ in parts]))
    np.save(folder / "train.npy", [sum(len(y) for _, y, _ in splits[0])])


def _users(path: Path, numbers: dict[str, int]) -> list[tuple[Bytes, NDArray[np.int64], int]]:
    """Images, classes and number of each user of a file; a user has one number in all files."""
    with reading(path):
        data = json.loads(path.read_bytes())["user_data"]
        return [
            (*_arrays(d["x"], d["y"]), numbers.setdefault(user, len(numbers))) for user, d in data.items() if d["y"]
        ]


def _arrays(x: list[list[float]], y: list[int]) -> tuple[Bytes, NDArray[np.int64]]:
    pixels = np.array(x, dtype=np.float64).reshape(len(y), 1, 28, 28)
    return np.rint(255 * pixels).astype(np.uint8), np.array(y, dtype=np.int64)
