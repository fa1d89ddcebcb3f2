"""A node's own data, as its configuration names it: a file, a function, or, for trials, a part of the experiment's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from polyfed.core.code import trusted
from polyfed.core.errors import BadInput, shown
from polyfed.core.federation import MISSING, SPLITS, Federation, Rows
from polyfed.core.keys import generator
from polyfed.core.source import Source
from polyfed.core.split import split
from polyfed.core.structure import Nested, joined, length, tensors
from polyfed.data import datasets

Shares = Mapping[str, Any]  # the experiment's [data]: its name; of its rows a client keeps aside 'valid' and 'test'
Parts = Mapping[str, tuple[Nested, Mapping[str, Tensor]]]  # by split: x, and the targets by objective


def who(node: Mapping[str, Any]) -> str:
    """The client's name: it keeps its number and its memory under it."""
    for key in ("name", "partition-id"):
        if key in node:
            return str(node[key])
    raise BadInput('A node needs a name: --node-config \'name="clinic-a" data="rows.npz"\', or a partition-id.')


def own_data(
    node: Mapping[str, Any], template: Federation, names: Sequence[str], shares: Shares, seed: int
) -> Federation:
    """A federation of this one client; the template is the experiment's, whose types it follows."""
    source = node.get("data")
    if source is None:
        return _part(node, template, str(shares.get("name", "")))
    if ":" in str(source) and not Path(str(source)).exists():
        with trusted():  # the node's own configuration names it
            made = datasets[str(source)]()
        if isinstance(made, Federation):
            return made
        parts: Parts = {"train": _pair(made)}
    else:
        parts = _file(Path(str(source)), names)
    train, valid, test = _rows(parts, shares, seed)
    return replace(_federation(parts, template, names), train=train, valid=valid, test=test)


def _part(node: Mapping[str, Any], template: Federation, dataset: str) -> Federation:
    part = node.get("partition-id")
    if part is not None and dataset == "nodes":
        raise BadInput(
            "The experiment's data are the nodes' own (data.name = 'nodes'), of which a partition-id is no part: "
            'start this node with name="..." and data="rows.npz".'
        )
    if part is None:
        raise BadInput('A node\'s configuration names its data, data="rows.npz", or, for trials, a partition-id.')
    if not isinstance(part, int) or not 0 <= part < len(template):
        raise BadInput(f"partition-id should be below data.clients, {len(template)}. Found {part}.")
    return template.alone(part)


def _file(path: Path, names: Sequence[str]) -> Parts:
    """x and a target for each objective it has; with valid_ or test_ before the name, rows kept aside.

    Where an example is a dict of arrays, each is called x.NAME.
    """
    try:
        with np.load(path.expanduser(), allow_pickle=False) as file:
            arrays = {key: torch.from_numpy(np.ascontiguousarray(file[key])) for key in file.files}
    except (OSError, ValueError) as error:
        raise BadInput(f"The node's data {str(path)!r} cannot be read as .npz: {error}.") from error
    found = {}
    for s, before in zip(SPLITS, ("", "valid_", "test_"), strict=True):
        x = arrays.get(before + "x") if before + "x" in arrays else {
            key.removeprefix(before + "x."): a for key, a in arrays.items() if key.startswith(before + "x.")
        }  # fmt: skip
        if isinstance(x, Tensor) or x:
            targets = {name: arrays[before + name] for name in names if before + name in arrays}
            found[s] = x, targets
    if "train" not in found or not found["train"][1]:
        raise BadInput(f"The node's data {str(path)!r} should hold 'x' and one of {', '.join(map(repr, names))}. "
                       f"Found {', '.join(arrays)}.")  # fmt: skip
    return found


def _pair(made: Any) -> tuple[Tensor, dict[str, Tensor]]:
    try:
        x, targets = made
        return tensors(x), {name: torch.as_tensor(t) for name, t in targets.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"A node's data function returns (x, {{objective: target}}) or a Federation; {error}."
        ) from error


def _federation(parts: Parts, template: Federation, names: Sequence[str]) -> Federation:
    """The parts' rows one after another; an objective without targets has blank ones and is not held."""
    streamed = isinstance(template.x, Source)
    wanted = _shapes(template.read(np.zeros(1, dtype=np.int64)) if streamed else template.x)
    for found in (_shapes(x) for x, _ in parts.values()):
        if found != wanted:
            raise BadInput(f"The node's examples have the shape {shown(found)}; the experiment's {shown(wanted)}.")
    x = joined([x for x, _ in parts.values()])
    targets = {name: torch.cat([_like(t, name, length(x), like) for x, t in parts.values()])
               for name, like in template.targets.items()}  # fmt: skip
    holds = {name: np.array([name in parts["train"][1]]) for name in names}
    rows = Rows.of([np.arange(length(x))])
    return replace(template.alone(0), x=x, targets=targets, labelled={}, train=rows, holds=holds)


def _shapes(x: Nested) -> Any:
    """The shape of an example, or of each of its arrays."""
    return tuple(x.shape[1:]) if isinstance(x, Tensor) else tree_map(lambda t: tuple(t.shape[1:]), x)


def _like(targets: Mapping[str, Tensor], name: str, n: int, like: Tensor) -> Tensor:
    blank = like.new_zeros((n, *like.shape[1:]))
    given = targets.get(name, blank)
    if given.shape != blank.shape:
        raise BadInput(f"The node's {name!r} should have the shape {tuple(blank.shape)}. Found {tuple(given.shape)}.")
    if given.is_floating_point() and not like.is_floating_point():  # a label that is missing stays so
        given = torch.where(given.isnan(), float(MISSING), given)
    return given.to(like.dtype)


def _rows(parts: Parts, shares: Shares, seed: int) -> tuple[Rows, Rows | None, Rows | None]:
    """The splits that came with the data; those the experiment wants besides are cut from the training rows."""
    lengths = np.cumsum([0, *(length(x) for x, _ in parts.values())])
    places = {s: Rows.of([np.arange(a, b)]) for s, a, b in zip(parts, lengths, lengths[1:], strict=False)}
    wanted = {s: 0.0 if s in places else shares.get(s, 0.0) for s in SPLITS[1:]}
    train, *aside = split(places["train"], wanted["valid"], wanted["test"], generator(seed, "split"))
    cut = {s: rows for s, rows in zip(SPLITS[1:], aside, strict=True) if wanted[s]}
    valid, test = (places.get(s, cut.get(s)) for s in SPLITS[1:])
    return train, valid, test
