"""From torch Datasets to a federation: what `Federation.from_datasets` does. Targets are found at once, x is left where
it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from polyfed.core import gather
from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.federation import Federation
from polyfed.core.source import Items, stacked
from polyfed.core.structure import leaves

Names = Mapping[str, str]  # from objectives to where their targets are
Pair = tuple[Items, dict[str, Any]]
TIMES = 4  # that an item is read to see whether it stays the same: a picture flipped at random may come out alike


def from_datasets(datasets: Any, owner: Any, targets: Any, valid: Any, test: Any, way: gather.Way) -> Federation:
    """As `Federation.from_datasets` says."""
    names = _named(targets)
    valid, test = (_more(given, names, what) for given, what in ((valid, "valid"), (test, "test")))
    if not isinstance(datasets, list | tuple | Mapping):
        if owner is None:
            raise BadInput(
                "One data set needs owner=, the owner of each of its items; or give a list with one data set for each "
                f"client. Found {shown(type(datasets).__name__)} alone."
            )
        items, found = _pair(datasets, names, "the data set")
        _warn_of_chance(items)
        return gather.from_arrays(items, found, None, owner, None, valid, test, way)
    if owner is not None:
        raise BadInput("owner= is for one data set that all clients share. Found a list, one for each client.")
    pairs = _each(datasets, partial(_pair, names=names), "client")
    for items, _ in list(pairs.values() if isinstance(pairs, Mapping) else pairs)[:1]:  # they are mostly of one kind
        _warn_of_chance(items)
    return gather.from_clients(pairs, valid, test, way)


def _warn_of_chance(items: Items) -> None:
    """Say where an item is another one whenever it is read: the run could not be repeated."""
    every = [leaves(items.read(np.zeros(1, dtype=np.int64))) for _ in range(TIMES)]
    if all(_same(a, b) for other in every[1:] for a, b in zip(every[0], other, strict=True)):
        return
    warnings.warn(
        f"I{items.name(0)[1:]} is another one whenever it is read, so that no run can be repeated: its transform is "
        "random. Give random transforms as augment=, which is called with a key in training only.",
        UserWarning,
        stacklevel=4,
    )


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return True  # what is no number is refused when it is used
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _each(datasets: Any, pair: Callable[..., Any], whose: str) -> Any:
    """(x, targets) of each, in a list or dict as they came."""
    if isinstance(datasets, Mapping):
        return {name: pair(one, whose=f"{whose} {shown(name)}") for name, one in datasets.items()}
    return [pair(one, whose=f"{whose} {i}") for i, one in enumerate(datasets)]


def _more(given: Any, names: Names, what: str) -> Any:
    """What valid= or test= names, as the other constructors have it: data sets become pairs."""

    def pair(one: Any, whose: str) -> Any:
        return _pair(one, names, whose) if _is_dataset(one) else one  # a client may have none

    if isinstance(given, list | Mapping):
        return _each(given, pair, f"the {what} data of client")
    return pair(given, f"the {what} data set")


def _is_dataset(given: Any) -> bool:
    """Items by number, and no array, list or table."""
    plain = isinstance(given, list | tuple | Mapping | str) or hasattr(given, "dtype") or hasattr(given, "columns")
    return hasattr(given, "__getitem__") and not plain


def _pair(dataset: Any, names: Names, whose: str) -> Pair:
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise BadInput(
            f"{whose} should be a torch Dataset with a length and items by number, as rows are drawn at random. Found "
            f"{shown(type(dataset).__name__)}."
        )
    if not len(dataset):
        raise BadInput(f"{whose} should have at least one item. Found a data set without any.")
    there = {o: name for o, name in names.items() if len(_attribute(dataset, name)) == len(dataset)}
    keys = {o: name for o, name in names.items() if o not in there}
    part, target = _parts(Items(dataset, _itself, whose).item(0), names, keys, whose)
    items = Items(dataset, part, whose)
    found = {objective: _attribute(dataset, name) for objective, name in there.items()}
    if target is not None:
        found |= _by_objective(stacked([target(items.item(i)) for i in range(len(dataset))]), whose)
    return items, found


def _attribute(dataset: Any, name: str) -> Any:
    """What a data set has of this name, as data sets of torchvision have 'targets' or 'labels'; or nothing."""
    found = getattr(dataset, name, ())
    return found if hasattr(found, "__len__") else ()


def _parts(
    item: Any, names: Names, keys: Names, whose: str
) -> tuple[Callable[[Any], Any], Callable[[Any], Any] | None]:
    """From an item to its x, and to the targets that are only in it."""
    if isinstance(item, Mapping):
        if not names:
            raise BadInput(f"Items that are dicts need targets=, the names of the targets. Found {shown(list(item))}.")
        for name in keys.values():
            if name not in item:
                raise BadInput(f"{whose} has no {name!r}, in its items or of its own.{nearest(name, item)}")
        inputs = [name for name in item if name not in names.values()]
        return partial(_inputs, inputs), partial(_targets, keys) if keys else None
    pair = isinstance(item, tuple | list) and len(item) == 2
    if keys:
        raise BadInput(f"{whose} has no {next(iter(keys.values()))!r} of one entry per item, and no dicts as items.")
    if not names and not pair:
        found = shown(type(item).__name__)
        raise BadInput(f"Items should be (x, target), or dicts with targets= named. Found {found} in {whose}.")
    return _first if pair else _itself, None if names else _second


def _by_objective(targets: Any, whose: str) -> dict[str, Any]:
    if isinstance(targets, Mapping):
        return dict(targets)
    if isinstance(targets, Tensor):
        return {"": targets}
    found = shown(type(targets).__name__)
    raise BadInput(f"An item's target should be numbers, or a dict of them by objective. Found {found} in {whose}.")


def _named(targets: Any) -> dict[str, str]:
    if targets is None:
        return {}
    if isinstance(targets, str):
        return {"": targets}
    if isinstance(targets, Mapping):
        return dict(targets)
    if isinstance(targets, Sequence) and all(isinstance(name, str) for name in targets):
        return {name: name for name in targets}
    raise BadInput(f"targets should be a name, a list of names, or a dict by objective. Found {shown(targets)}.")


# functions and no lambdas: sources travel to other processes


def _itself(item: Any) -> Any:
    return item


def _first(item: Any) -> Any:
    return item[0]


def _second(item: Any) -> Any:
    return item[1]


def _inputs(names: Sequence[str], item: Any) -> Any:
    """A dict of the inputs; of one alone the array."""
    return {name: item[name] for name in names} if len(names) > 1 else item[names[0]]


def _targets(names: Names, item: Any) -> dict[str, Any]:
    return {objective: item[name] for objective, name in names.items()}
