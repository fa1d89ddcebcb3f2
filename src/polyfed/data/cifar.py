"""CIFAR-10 (Krizhevsky 2009): 60,000 colour photographs of 32x32 in ten classes."""

from __future__ import annotations

import tarfile
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.mnist import Images
from polyfed.data.prepare import scaled
from polyfed.data.store import File, Source, arrays, cached, reading, stored

SUBSET = (20_000, 5_000)
_TAR = File(
    "cifar-10-binary.tar.gz",
    lesser=("cifar10_20k_5k.npz",),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    checksum="sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR = Source("cifar10", "cifar10", (_TAR,))
CIFAR_SCALE = partial(scaled, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))

Split = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@stored("cifar10", CIFAR)
def cifar10(*, subset: bool = False) -> Dataset:
    """Photographs, 3x32x32; objective 'object'. subset: the first 20,000 to train and the first 5,000 to test.

    Args:
        subset: less than half of the images, for quicker runs; all that the small cifar10_20k_5k.npz has.
    """
    x, y, train, _ = cifar_images(subset)
    return Dataset(x, {"object": y}, (Objective("object", "cross-entropy"),), train, labels=y, prepare=CIFAR_SCALE)


def cifar_images(subset: bool) -> Images:
    """Both splits, whole or only their first images; the same images whichever file they come from."""
    (path,) = CIFAR.paths()
    if path.suffix == ".npz" and not subset:
        raise BadInput(
            f"{path} holds only a part of CIFAR-10; run 'polyfed data fetch cifar10' for all of it, "
            "or set data.subset = true."
        )
    made = cached(partial(_unpack, path, subset), "cifar10", [path], version=1, subset=subset)
    return Images(made["x"], made["y"], int(made["train"][0]), (path,))


def _unpack(path: Path, subset: bool, folder: Path) -> None:
    splits = _npz(path) if path.suffix == ".npz" else _tar(path)
    parts = [(x[:n], y[:n]) for (x, y), n in zip(splits, SUBSET if subset else (None, None), strict=True)]
    np.save(folder / "x.npy", np.concatenate([x for x, _ in parts]))
    np.save(folder / "y.npy", np.concatenate([y for _, y in parts]).astype(np.int64))
    np.save(folder / "train.npy", [len(parts[0][1])])


def _tar(path: Path) -> tuple[Split, Split]:
    """The publisher's binary version: records of one label and 3x32x32 pixels, in five batches and one of tests."""
    with reading(path), tarfile.open(path) as tar:
        batches = {Path(m.name).stem: _records(tar, m) for m in tar if m.name.endswith(".bin")}
        train = [batches[f"data_batch_{i}"] for i in range(1, 6)]
        return (np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])), batches["test_batch"]


def _records(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Split:
    content = tar.extractfile(member)
    assert content is not None
    records = np.frombuffer(content.read(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _npz(path: Path) -> tuple[Split, Split]:
    """Our compact form: differences along rows and columns, red and blue less green, all modulo 256."""
    dx_train, y_train, dx_test, y_test = arrays(path, "dx_train", "y_train", "dx_test", "y_test")
    return (_summed(dx_train), y_train), (_summed(dx_test), y_test)


def _summed(d: NDArray[np.uint8]) -> NDArray[np.uint8]:
    x = np.cumsum(np.cumsum(d, -2, dtype=np.uint8), -1, dtype=np.uint8)
    x[:, 0] += x[:, 1]
    x[:, 2] += x[:, 1]
    return x
