"""Small files in the formats of the real data sets, for tests that read some."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np


def write_idx(path: Path, values: np.ndarray) -> None:
    """An array of bytes in MNIST's format."""
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes()))


def write_mnist(folder: Path, seed: int = 0, train: int = 30, test: int = 10) -> None:
    """Random images in MNIST's four files, the ten classes in equal shares."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, n in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (n, 28, 28)) * (rng.random((n, 28, 28)) < 0.3)
        write_idx(folder / f"{split}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{split}-labels-idx1-ubyte.gz", rng.permutation(n) % 10)


def write_har(path: Path, x: np.ndarray, y: np.ndarray, subject: np.ndarray) -> None:
    """Windows (n, 9, 128) of Human Activity in its compact form: each half once, and which two make a window."""
    flat = x.astype(np.float32).reshape(-1, 9, 2, 64).transpose(0, 2, 1, 3).reshape(-1, 9 * 64)
    halves, index = np.unique(flat, axis=0, return_inverse=True)
    index = index.reshape(-1, 2).astype(np.uint16)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, halves=halves.reshape(-1, 9, 64), idx=index, y=y.astype(np.uint8), subject=subject.astype(np.uint8))
