"""From the [data] table of an experiment to a federation: load, partition, keep rows aside."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from polyfed.data import Dataset, datasets, partitions
from polyfed.errors import BadInput, nearest
from polyfed.federation import Federation, Rows
from polyfed.keys import generator
from polyfed.settings import Settings, Table, accepts, build, check


class Data(Table):
    """The keys of [data] beside those of the data set and of the partition."""

    name: str
    clients: Annotated[int, Field(ge=1)] = 100
    partition: str = "iid"
    valid: Annotated[float, Field(ge=0, lt=1)] = 0.0
    test: Annotated[float, Field(ge=0, lt=1)] = 0.0


def build_data(table: Settings, seed: int) -> tuple[Dataset, Federation, Settings]:
    """[data] serves three: the data set, the partition, and the keys of `Data`."""
    own = {key: value for key, value in table.items() if key in Data.model_fields}
    general: Data = check(lambda: Data(**own), own, "data", Data.model_fields)
    source, partition = datasets[general.name], partitions[general.partition]
    for_source, for_partition = accepts(source, ["seed"]), accepts(partition, ["dataset", "clients", "rng"])
    for key in table:
        if key not in {*Data.model_fields, *for_source, *for_partition}:
            known = {*Data.model_fields, *for_source, *for_partition}
            raise BadInput(f"Unknown key 'data.{key}'.{nearest(key, known)}")
    pick = lambda keys: {key: value for key, value in table.items() if key in keys}  # noqa: E731
    dataset, resolved = build(source, pick(for_source), "data", seed=seed)
    rng = generator(seed, "partition")
    train, more = build(partition, pick(for_partition), "data", dataset=dataset, clients=general.clients, rng=rng)
    return dataset, federate(dataset, train, general.valid, general.test), {**general.model_dump(), **resolved, **more}


def federate(dataset: Dataset, rows: Rows, valid: float = 0.0, test: float = 0.0) -> Federation:
    """A federation of a data set's rows; each client keeps fractions of its own aside for validation and test."""
    whole = rows.length
    n_test, n_valid = np.round(whole * test).astype(int), np.round(whole * valid).astype(int)
    n_train = whole - n_test - n_valid
    return Federation(
        x=torch.from_numpy(dataset.x),
        targets={name: torch.from_numpy(np.asarray(t)) for name, t in dataset.targets.items()},
        train=Rows(rows.order, rows.start, n_train),
        valid=Rows(rows.order, rows.start + n_train, n_valid) if valid else None,
        test=Rows(rows.order, rows.start + n_train + n_valid, n_test) if test else None,
        server=None if dataset.train is None else np.arange(dataset.train, len(dataset.x)),
        prepare=dataset.prepare,
    )
