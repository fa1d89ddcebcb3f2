"""How long data takes: MultiMNIST built (aim: 10 s), opened again (0.5 s), and split over 100 Dirichlet clients (1 s).

POLYFED_DATA=/where/the/data/is python benchmarks/data.py
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

import torch

from polyfed.core.keys import generator
from polyfed.data import datasets, partitions
from polyfed.data.build import build_data, federate

T = TypeVar("T")


def timed(what: str, aim: float, do: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = do()
    print(f"{what:<60} {time.perf_counter() - start:7.3f} s   aim {aim:4.1f} s")
    return result


def main() -> None:
    torch.set_num_threads(1)
    load, partition = datasets["multimnist"], partitions["dirichlet"]
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["XDG_CACHE_HOME"] = fresh
        timed("MultiMNIST, 70,000 images: unpack MNIST, compose, write", 10, lambda: load(seed=0))
        data = timed("the same opened again", 0.5, lambda: load(seed=0))
        timed("and every pixel read", 0.5, lambda: int(data.x.sum()))
        rows = timed(
            "100 clients, Dirichlet(0.3) over 100 labels", 1, lambda: partition(data, rng=generator(0, "partition"))
        )
        timed("a federation of them", 1, lambda: federate(data, rows))
        table = {"name": "multimnist", "partition": "dirichlet", "clients": 100}
        timed("from the [data] table to the federation", 1, lambda: build_data(table, 0))


if __name__ == "__main__":
    main()
