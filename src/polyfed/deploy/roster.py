"""Who the clients are: the names they gave, their numbers, and what each said it has; kept beside the run."""

from __future__ import annotations

import json
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput, shown
from polyfed.core.federation import SPLITS
from polyfed.core.messages import Arrays, BadMessage, short_text, whole_number
from polyfed.run.directory import write

LONGEST_NAME = 100  # characters
ASIDE = SPLITS[1:]  # the rows that clients keep aside
MOST = 1 << 40  # examples: sums over all clients stay far from what 64 bits hold


@dataclass(frozen=True)
class Description:
    """What a client says of itself: labelled is how many of its examples have a label for each objective, None where
    no label is missing; aside is how many rows it keeps for 'valid' and for 'test', None where it has not said."""

    name: str
    examples: int
    holds: list[bool]
    labelled: list[int] | None = None
    aside: list[int] | None = None

    @property
    def most(self) -> int:
        """How many rows its largest split has."""
        every: list[int] = [self.examples, *(self.aside or [])]
        return max(every)

    @classmethod
    def of(cls, arrays: Arrays, objectives: int) -> Description:
        """From an introduction; whatever is wrong with it is a `BadMessage`."""
        name = short_text(arrays.get("name"), "name of a client", most=LONGEST_NAME)
        if name != unicodedata.normalize("NFKC", name).strip():
            raise BadMessage(f"A client's name is in plain letters (Unicode's form NFKC); found {shown(name)}.")
        examples = whole_number(arrays.get("examples"), "number of a client's examples", most=MOST)
        holds = arrays.get("holds")
        if holds is None or holds.dtype != torch.bool or holds.shape != (objectives,):
            found = "nothing" if holds is None else f"{holds.dtype} of shape {shown(tuple(holds.shape))}"
            raise BadMessage(f"A client says of {objectives} objectives whether it holds them; found {found}.")
        labelled = _labelled(arrays.get("labelled"), objectives, examples)
        return cls(name, examples, holds.tolist(), labelled, _aside(arrays.get("aside")))


@dataclass(frozen=True)
class Roster:
    """The run's id, and its clients in the order of their numbers."""

    clients: Sequence[Description]
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def gathered(cls, found: Mapping[str, Description]) -> Roster:
        """Numbers follow the names, by value where all are numbers."""
        by_value = all(name.isascii() and name.isdigit() for name in found)
        return cls([found[name] for name in sorted(found, key=lambda n: (int(n) if by_value else 0, n))])

    def number(self, name: str) -> int | None:
        return next((i for i, client in enumerate(self.clients) if client.name == name), None)

    @property
    def examples(self) -> NDArray[np.int64]:
        return np.array([client.examples for client in self.clients], dtype=np.int64)

    @property
    def holds(self) -> NDArray[np.bool_]:
        return np.array([client.holds for client in self.clients], dtype=bool)

    @property
    def labelled(self) -> NDArray[np.float64] | None:
        """n_is / n_i, clients x objectives; None where no client lacks a label."""
        if all(client.labelled is None for client in self.clients):
            return None
        n = np.maximum(self.examples, 1)[:, None]
        said = [c.labelled if c.labelled is not None else [c.examples] * len(c.holds) for c in self.clients]
        return np.where(self.holds, np.array(said) / n, 0.0)

    @property
    def aside(self) -> dict[str, NDArray[np.int64]]:
        """How many rows each client keeps aside, by split; -1 where it has not said."""
        said = [[-1] * len(ASIDE) if c.aside is None else c.aside for c in self.clients]
        return dict(zip(ASIDE, np.array(said, dtype=np.int64).reshape(-1, len(ASIDE)).T, strict=True))

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Where rows that are kept aside may have labels: of whoever lacks some, nobody knows in which rows."""
        lacks = np.array([client.labelled is not None for client in self.clients], dtype=bool)
        return np.asarray(self.holds | lacks[:, None])

    def save(self, path: Path) -> None:
        table = {"run": self.run, "clients": [vars(client) for client in self.clients]}
        write(path, json.dumps(table, indent=1).encode() + b"\n")

    @classmethod
    def load(cls, path: Path) -> Roster:
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            return cls([Description(**client) for client in table["clients"]], table["run"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path} is not a list of clients as a run writes it; {error!r}.") from error


def _labelled(said: Tensor | None, objectives: int, examples: int) -> list[int] | None:
    if said is None:
        return None
    if said.dtype != torch.int64 or said.shape != (objectives,) or not ((said >= 0) & (said <= examples)).all():
        found = f"{said.dtype} of shape {shown(tuple(said.shape))}"
        raise BadMessage(
            f"A client says of {objectives} objectives how many of its {examples} examples have a label; found {found}."
        )
    counts: list[int] = said.tolist()
    return counts


def _aside(said: Tensor | None) -> list[int] | None:
    if said is None:
        return None
    if said.dtype != torch.int64 or said.shape != (len(ASIDE),) or not ((said >= 0) & (said <= MOST)).all():
        found = f"{said.dtype} of shape {shown(tuple(said.shape))}"
        raise BadMessage(f"A client says how many rows it keeps for {' and '.join(ASIDE)}, 0 to {MOST}; found {found}.")
    counts: list[int] = said.tolist()
    return counts
