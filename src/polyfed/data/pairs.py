"""Two images in one, each with its own label: the two-objective problems of FedCMOO (Askin et al. 2025) and others.

Every image of a split is the first of one pair; the second comes from the same split in a random order. Labels for
label-skewed partitions are composite, 10 y1 + y2: a hundred of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.keys import generator
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.cifar import CIFAR, CIFAR_SCALE, cifar_images
from polyfed.data.mnist import FASHION, MNIST, MNIST_SCALE, Images, images
from polyfed.data.store import cached, stored

Pixels = NDArray[np.uint8]
CHUNK = 10_000  # images composed at a time: bounds the memory a build takes


@stored("multimnist", MNIST)
def multimnist(*, seed: int) -> Dataset:
    """Two overlapping digits, top left and bottom right, 28x28; objectives 'left' and 'right'."""
    digits = images(MNIST)
    return _paired("multimnist", ("left", "right"), digits, digits, seed, partial(_overlaid, side=36, at=6))


@stored("mnist-fmnist", MNIST, FASHION)
def mnist_fmnist(*, seed: int) -> Dataset:
    """A digit, top left, and a garment, bottom right, 28x28; objectives 'digit' and 'garment'."""
    how = partial(_overlaid, side=42, at=14)
    return _paired("mnist-fmnist", ("digit", "garment"), images(MNIST), images(FASHION), seed, how)


@stored("cifar10-mnist", CIFAR, MNIST)
def cifar10_mnist(*, seed: int, subset: bool = False) -> Dataset:
    """A digit shining through a CIFAR-10 photograph, 3x32x32; objectives 'object' and 'digit'.

    Args:
        subset: the first 20,000 photographs to train and the first 5,000 to test, in place of all 60,000.
    """
    how = partial(_pasted, at=2, opacity=156)
    photographs = cifar_images(subset)
    return _paired("cifar10-mnist", ("object", "digit"), photographs, images(MNIST), seed, how, CIFAR_SCALE)


def _paired(
    name: str,
    names: tuple[str, str],
    first: Images,
    second: Images,
    seed: int,
    compose: Callable[[Pixels, Pixels], Pixels],
    prepare: Callable[..., Any] = MNIST_SCALE,
) -> Dataset:
    partner = _partners(first, second, generator(seed, name))
    build = partial(_build, first.x, second.x, partner, compose)
    x = cached(build, name, (*first.files, *second.files), version=1, seed=seed, train=first.train)["x"]
    y1, y2 = first.y, second.y[partner]
    objectives = tuple(Objective(n, "cross-entropy") for n in names)
    return Dataset(x, dict(zip(names, (y1, y2), strict=True)), objectives, first.train, 10 * y1 + y2, prepare=prepare)


def _partners(first: Images, second: Images, rng: np.random.Generator) -> NDArray[np.int64]:
    """For each first image the row of its second: a random order of the same split, begun again where it ends."""
    tests = len(first.y) - first.train, len(second.y) - second.train
    train = np.resize(rng.permutation(second.train), first.train)
    return np.concatenate([train, second.train + np.resize(rng.permutation(tests[1]), tests[0])])


def _build(
    first: Pixels, second: Pixels, partner: NDArray[np.int64], compose: Callable[[Pixels, Pixels], Pixels], folder: Path
) -> None:
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.uint8, shape=first.shape)
    for start in range(0, len(first), CHUNK):
        rows = slice(start, start + CHUNK)
        x[rows] = compose(first[rows], second[partner[rows]])
    x.flush()


def _overlaid(first: Pixels, second: Pixels, side: int, at: int) -> Pixels:
    """On a canvas of side x side, the second image shifted down and right; the brighter pixel; then every
    nearest one of 28x28 (rounding down, as torch does)."""
    size = first.shape[-1]
    seen = np.arange(size) * side // size
    return np.maximum(_placed(first, seen), _placed(second, seen - at))


def _placed(images: Pixels, where: NDArray[np.int64]) -> Pixels:
    """The rows and columns `where` of each image, black outside it."""
    framed = np.pad(images, ((0, 0), (0, 0), (0, 1), (0, 1)))
    size = images.shape[-1]
    index = np.where((where >= 0) & (where < size), where, size)
    return framed[:, :, index[:, None], index]


def _pasted(photographs: Pixels, digits: Pixels, at: int, opacity: int) -> Pixels:
    """The digit over all channels where it is not black, mixed by opacity / 255 and rounded."""
    out = photographs.astype(np.int32)
    size = digits.shape[-1]
    window = out[:, :, at : at + size, at : at + size]
    mixed = (digits * np.int32(opacity) + window * (255 - opacity) + 127) // 255
    window[:] = np.where(digits > 0, mixed, window)
    return out.astype(np.uint8)
