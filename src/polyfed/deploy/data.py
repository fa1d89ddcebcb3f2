"""A node's own data, as its configuration names it: a file, a function, or, for trials, a part of the experiment's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.data.build import split
from polyfed.errors import BadInput
from polyfed.federation import SPLITS, Federation, Rows
from polyfed.keys import generator
from polyfed.registry import imported

Parts = Mapping[str, tuple[Tensor, Mapping[str, Tensor]]]  # by split: x, and the targets by objective


def who(node: Mapping[str, Any]) -> str:
    """The client's name: it keeps its number and its memory under it."""
    for key in ("name", "partition-id"):
        if key in node:
            return str(node[key])
    raise BadInput('A node needs a name: --node-config \'name="clinic-a" data="rows.npz"\', or a partition-id.')


def own_data(node: Mapping[str, Any], template: Federation, names: Sequence[str], seed: int) -> Federation:
    """A federation of this one client; the template is the experiment's, whose types and splits it follows."""
    source = node.get("data")
    if source is None:
        return _part(node, template)
    if ":" in str(source) and not Path(str(source)).exists():
        made = imported(str(source), "data")()
        return made if isinstance(made, Federation) else _federation({"train": _pair(made)}, template, names, seed)
    return _federation(_file(Path(str(source)), names), template, names, seed)


def _part(node: Mapping[str, Any], template: Federation) -> Federation:
    part = node.get("partition-id")
    if part is None:
        raise BadInput("A node's configuration names its data, data=\"rows.npz\", or, for trials, a partition-id.")
    if not 0 <= int(part) < len(template):
        raise BadInput(f"partition-id should be below data.clients, {len(template)}. Found {part}.")
    return template.alone(int(part))


def _file(path: Path, names: Sequence[str]) -> Parts:
    """x and a target for each objective it has; with valid_ or test_ before the name, rows kept aside."""
    try:
        with np.load(path.expanduser(), allow_pickle=False) as file:
            arrays = {key: torch.from_numpy(np.ascontiguousarray(file[key])) for key in file.files}
    except (OSError, ValueError) as error:
        raise BadInput(f"The node's data {str(path)!r} cannot be read as .npz: {error}.") from error
    found = {}
    for s, before in zip(SPLITS, ("", "valid_", "test_"), strict=True):
        if before + "x" in arrays:
            targets = {name: arrays[before + name] for name in names if before + name in arrays}
            found[s] = arrays[before + "x"], targets
    if "train" not in found or not found["train"][1]:
        raise BadInput(f"The node's data {str(path)!r} should hold 'x' and one of {', '.join(map(repr, names))}. "
                       f"Found {', '.join(arrays)}.")  # fmt: skip
    return found


def _pair(made: Any) -> tuple[Tensor, dict[str, Tensor]]:
    try:
        x, targets = made
        return torch.as_tensor(x), {name: torch.as_tensor(t) for name, t in targets.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"A node's data function returns (x, {{objective: target}}) or a Federation; {error}.") from error


def _federation(parts: Parts, template: Federation, names: Sequence[str], seed: int) -> Federation:
    held = parts["train"][1]
    targets = {}
    for name in template.targets:
        like = template.targets[name]
        rows = [t[name] if name in t else like.new_zeros((len(x), *like.shape[1:])) for x, t in parts.values()]
        targets[name] = torch.cat([row.to(like.dtype) for row in rows])
    x = torch.cat([x for x, _ in parts.values()])
    if x.shape[1:] != template.x.shape[1:]:
        raise BadInput(f"The node's examples have the shape {tuple(x.shape[1:])}; "
                       f"the experiment's {tuple(template.x.shape[1:])}.")  # fmt: skip
    holds = {name: np.array([name in held]) for name in names}
    made = replace(template.alone(0), x=x, targets=targets, holds=holds, **_rows(parts, template, seed))
    return made


def _rows(parts: Parts, template: Federation, seed: int) -> dict[str, Rows | None]:
    """The splits that came with the data; otherwise those that the experiment wants are cut from the training rows."""
    lengths = np.cumsum([0, *(len(x) for x, _ in parts.values())])
    places = {s: Rows.of([np.arange(a, b)]) for s, a, b in zip(parts, lengths, lengths[1:], strict=False)}
    shares = {s: 0.0 if s in places else template_share(template, s) for s in SPLITS[1:]}
    if not any(shares.values()):
        return {s: places.get(s) for s in SPLITS}
    train, valid, test = split(places["train"], shares["valid"], shares["test"], generator(seed, "split"))
    cut = {"train": train, "valid": valid if shares["valid"] else None, "test": test if shares["test"] else None}
    return {s: places[s] if s in places and s != "train" else cut[s] for s in SPLITS}


def template_share(template: Federation, split: str) -> float:
    """The part of its rows that the experiment has a client keep aside."""
    rows: Rows | None = getattr(template, split)
    return 0.0 if rows is None else template.shares.get(split, 0.0)
