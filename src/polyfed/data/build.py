"""From the [data] table of an experiment to a federation: load, partition, keep rows aside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.federation import Federation, Rows
from polyfed.core.keys import generator
from polyfed.core.room import check_room
from polyfed.core.settings import Settings, Table, accepts, build, check
from polyfed.core.split import Rng, split
from polyfed.core.structure import length
from polyfed.data import Dataset, datasets, partitions, sample
from polyfed.data.augment import Rotation
from polyfed.data.holds import Holds, draw_holds

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Data(Table):
    """The keys of [data] beside those of the data set and of the partition."""

    name: str
    partition: str = "iid"
    valid: Fraction = 0.0
    test: Fraction = 0.0
    skew: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    skew_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    holds: Holds = "all"
    rotate: Annotated[float, Field(ge=0, le=180)] = 0.0


def build_data(table: Settings, seed: int) -> tuple[Dataset, Federation, Settings]:
    """[data] serves three: the data set, the partition, and the keys of `Data`."""
    own = _only(table, Data.model_fields)
    general: Data = check(lambda: Data(**own), own, "data", Data.model_fields)
    source, partition = datasets[general.name], partitions[general.partition]
    for_source, for_partition = accepts(source, ["seed"]), accepts(partition, ["dataset", "rng"])
    known = {*Data.model_fields, *for_source, *for_partition}
    for key in table:
        if key not in known:
            raise BadInput(f"Unknown key {shown(f'data.{key}')}.{nearest(key, known)}")
    if isinstance(clients := table.get("clients"), int):
        check_room(32 * clients, "data.clients")
    dataset, resolved = build(source, _only(table, for_source), "data", seed=seed)
    rng = generator(seed, "partition")
    rows, more = build(partition, _only(table, for_partition), "data", dataset=dataset, rng=rng)
    options = general.model_dump(exclude={"name", "partition"})
    return dataset, federate(dataset, rows, seed=seed, **options), {**general.model_dump(), **resolved, **more}


def can_part(table: Settings, seed: int) -> bool:
    """Whether the data set of a [data] table has what its partition goes by: labels or keys. Of what cannot be loaded
    that is not known, and true.

    Args:
        table: with the names of a data set and of a partition.
        seed: of the experiment.
    """
    try:
        source, partition = datasets[table["name"]], partitions[table["partition"]]
        dataset, _ = build(source, _only(table, accepts(source, ["seed"])), "data", seed=seed)
    except BadInput:
        return True
    own = _only(table, accepts(partition, ["dataset", "rng"]))
    try:
        build(partition, own, "data", dataset=dataset, rng=generator(seed, "partition"))
    except BadInput:
        return False
    return True


def _only(table: Settings, keys: Collection[str]) -> Settings:
    return {key: value for key, value in table.items() if key in keys}


def federate(
    dataset: Dataset,
    rows: Rows,
    *,
    seed: int = 0,
    valid: float = 0.0,
    test: float = 0.0,
    skew: float = 1.0,
    skew_share: float = 1.0,
    holds: Holds = "all",
    rotate: float = 0.0,
) -> Federation:
    """A federation of a data set's rows; each client keeps fractions of its own aside, at random, for valid and test.

    skew: how many times more training rows the largest client has than the smallest, skew_share: which part of the
    clients lose rows for it (`skewed`). holds: which clients have which objectives. rotate: training images are turned
    by up to so many degrees.
    """
    if skew == 1 and skew_share != 1:
        raise BadInput(f"data.skew_share goes with data.skew above 1. Found skew_share = {skew_share} and skew = 1.")
    if not rows.length.all():
        empty = int((rows.length == 0).sum())
        raise BadInput(f"Each client should have a row; {empty} of {len(rows)} have none: use fewer clients.")
    train, for_valid, for_test = split(rows, valid, test, generator(seed, "split"))
    return Federation(
        x=_resident(dataset.x),
        targets={name: torch.from_numpy(np.asarray(t)) for name, t in dataset.targets.items()},
        train=train if skew == 1 else skewed(train, skew, skew_share, generator(seed, "skew")),
        valid=for_valid if valid else None,
        test=for_test if test else None,
        server=None if dataset.train is None else np.arange(dataset.train, length(dataset.x)),
        holds=draw_holds(holds, len(rows), [o.name for o in dataset.objectives], generator(seed, "holds")),
        columns={name: torch.from_numpy(np.asarray(c)) for name, c in dataset.columns.items()},
        prepare=dataset.prepare,
        augment=_rotation(dataset, rotate) if rotate else None,
        minimiser=dataset.minimiser,
    )


def skewed(train: Rows, ratio: float, share: float, rng: Rng) -> Rows:
    """MOCHA's skewed data (its Table 3): clients keep part of their training rows, so that sizes differ by `ratio`.

    The largest client keeps all its n rows, some other n / ratio (3 of 306, 5 of 517, 6 of 581, 19 of 1933 at ratio
    100, as printed). Of the rest a random `share` keep a log-uniform number in between, if they have as many. The
    paper gives the extremes and the standard deviation only; the law in between is ours, and a share of 0.15 gives its
    standard deviation for Human Activity, 0.4 for Land Mine, 0.08 for Vehicle.
    """
    largest, others = int(train.length.argmax()), rng.permutation(len(train))
    exponent = rng.random(len(train))
    exponent[rng.random(len(train)) >= share] = 0
    exponent[others[others != largest][:1]] = 1
    exponent[largest] = 0
    keep = np.round(train.length[largest] * ratio**-exponent).astype(np.int64)
    return Rows(train.order, train.start, np.clip(keep, 1, train.length))


def _resident(x: Any) -> Any:
    """Arrays of the cache are memory maps; as plain arrays over the same pages, they are taken for data in memory."""
    if isinstance(x, Mapping):
        return {name: _resident(part) for name, part in x.items()}
    if isinstance(x, tuple | list):
        return tuple(_resident(part) for part in x)
    return np.asarray(x) if isinstance(x, np.memmap) else x


def _rotation(dataset: Dataset, degrees: float) -> Rotation:
    shape = tuple(sample(dataset).shape[1:])
    if len(shape) != 3:
        raise BadInput(f"data.rotate is for images (channels, h, w). Found examples of shape {shape}; leave it out.")
    return Rotation(degrees)
