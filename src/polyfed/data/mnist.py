"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): 70,000 grey images of 28x28 in ten classes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.prepare import scaled
from polyfed.data.store import File, Source, cached, reading, stored, unpacked


def _source(name: str, folder: str, url: str, checksums: dict[str, str]) -> Source:
    files = {f"{part}-ubyte.gz": checksum for part, checksum in checksums.items()}
    return Source(
        name, folder, tuple(File(n, (n[:-3],), url=url + n, checksum=f"sha256:{c}") for n, c in files.items())
    )


MNIST = _source(
    "mnist",
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)
FASHION = _source(
    "fashion-mnist",
    "fashion_mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    {
        "train-images-idx3": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
)
MNIST_SCALE = partial(scaled, mean=(0.1307,), std=(0.3081,))
FASHION_SCALE = partial(scaled, mean=(0.2860,), std=(0.3530,))


class Images(NamedTuple):
    """Images (n, channels, height, width), their classes, how many are for training, and the files they are from."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    train: int
    files: tuple[Path, ...]


@stored("mnist", MNIST)
def mnist() -> Dataset:
    """Handwritten digits, 28x28; objective 'digit'."""
    x, y, train, _ = images(MNIST)
    return Dataset(x, {"digit": y}, (Objective("digit", "cross-entropy"),), train, labels=y, prepare=MNIST_SCALE)


@stored("fashion-mnist", FASHION)
def fashion_mnist() -> Dataset:
    """Clothing, 28x28; objective 'garment'."""
    x, y, train, _ = images(FASHION)
    return Dataset(x, {"garment": y}, (Objective("garment", "cross-entropy"),), train, labels=y, prepare=FASHION_SCALE)


def images(source: Source) -> Images:
    """Both splits of MNIST or of Fashion-MNIST."""
    paths = source.paths()
    made = cached(partial(_unpack, paths), source.name, paths, version=1)
    return Images(made["x"], made["y"], int(made["train"][0]), tuple(paths))


def _unpack(paths: list[Path], folder: Path) -> None:
    (x_train, y_train), (x_test, y_test) = _split(*paths[:2]), _split(*paths[2:])
    np.save(folder / "x.npy", np.concatenate([x_train, x_test])[:, None])
    np.save(folder / "y.npy", np.concatenate([y_train, y_test]).astype(np.int64))
    np.save(folder / "train.npy", [len(y_train)])


def _split(of_images: Path, of_labels: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = _idx(of_images, 3), _idx(of_labels, 1)
    with reading(of_labels):
        if len(x) != len(y):
            raise ValueError("one label per image")
    return x, y


def _idx(path: Path, dimensions: int) -> NDArray[Any]:
    """An array in MNIST's format: two zeros, the type, the number of dimensions, each dimension, the values."""
    content = unpacked(path)
    with reading(path):
        if content[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError("not bytes, or of other dimensions")
        shape = np.frombuffer(content, ">i4", dimensions, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
