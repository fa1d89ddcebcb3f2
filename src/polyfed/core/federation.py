"""The clients: what each has. One set of arrays and index lists: a million clients cost a million offsets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from polyfed.core.errors import BadInput, shown
from polyfed.core.problem import Batch
from polyfed.core.source import Index, Placed, Source, read
from polyfed.core.structure import Nested, joined, leaves, length, mapped, one_tensor, tensors

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Rows:
    """Which examples each client has: a stretch order[start : start + length] of one order, wrapping at its end.

    Stretches may overlap, so clients can share examples by reference.

    Args:
        order: row numbers.
        start: where in the order each client's stretch begins.
        length: how many rows each client has.
    """

    order: Index
    start: Index
    length: Index

    @classmethod
    def of(cls, lists: Sequence[ArrayLike]) -> Rows:
        """From one list of row numbers per client."""
        arrays = [_row_numbers(rows, client) for client, rows in enumerate(lists)]
        length = np.array([rows.size for rows in arrays], dtype=np.int64)
        order = np.concatenate([rows.ravel() for rows in arrays]).astype(np.int64) if arrays else length
        return cls(order, np.cumsum(length) - length, length)

    @classmethod
    def dealt(cls, order: Index, clients: int) -> Rows:
        """An order of rows cut into shares whose sizes differ by at most one."""
        if clients > len(order):
            raise BadInput(f"There should be at most as many clients as rows, {len(order)}. Found {clients}.")
        length = np.full(clients, len(order) // clients, dtype=np.int64)
        length[: len(order) % clients] += 1
        return cls(order, np.cumsum(length) - length, length)

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, client: int) -> Index:
        start, length = int(self.start[client]), int(self.length[client])
        if start + length <= len(self.order):
            return self.order[start : start + length]
        return self.order[(start + np.arange(length)) % len(self.order)]


@dataclass(frozen=True)
class Federation:
    """All clients' examples, each client's train, validation and test rows, and which objectives it holds.

    `Federation.from_arrays` and `Federation.from_clients` are shorter ways to make one.

    A label may be missing in some rows: NaN, or -100 among whole numbers that are else not negative. Such a row does
    not count for that objective, and a client without any label for it does not hold it.

    Args:
        x: one row per example: a tensor, or a dict, tuple or list of them. A module gets a dict as keywords and a
            tuple as positions where its `forward` takes them so. Or a `polyfed.Source`, or memory maps in place of
            tensors: then it is read row by row when a client's turn comes, and never held whole.
        targets: for each objective, one row per example; the name '' serves every objective.
        train: each client's training rows.
        valid: each client's validation rows.
        test: each client's test rows.
        server: the rows of the server's own test data.
        holds: for each objective, which clients have data for it (the 0/1 matrix A, by column); everybody holds an
            objective that it does not name.
        prepare: turns a raw batch of x into what the model takes; it may also load what x names.
        augment: then changes it at random, in training only, by a key.
        columns: more about every example, by name, for losses and metrics that take them: groups, weights, times.
        labelled: for targets that some rows lack, which rows have one; found by itself.
        labels: the label of each row, where a picture of the split wants them.
        minimiser: of the one objective, from what every row counts in it to x*, where data know it exactly.
    """

    x: Nested
    targets: Mapping[str, Tensor]
    train: Rows
    valid: Rows | None = None
    test: Rows | None = None
    server: Index | None = None
    holds: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    prepare: Callable[[Any], Any] | None = None
    augment: Callable[[Any, Any], Any] | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    labelled: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    labels: NDArray[np.int64] | None = field(default=None, repr=False)
    minimiser: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", tensors(self.x))
        for what in ("targets", "columns"):
            named = {name: one_tensor(values) for name, values in getattr(self, what).items()}
            object.__setattr__(self, what, named)
            for name, values in named.items():
                if len(values) != self.size:
                    raise BadInput(
                        f"{what.capitalize()} need one row per example: {name or what!r} has {len(values)}, x has "
                        f"{self.size}."
                    )
        targets, labelled = fill_missing(self.targets, self.labelled)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "labelled", labelled)
        for name, held in self.holds.items():
            if len(held) != len(self):
                raise BadInput(f"'holds' needs one entry per client: {name!r} has {len(held)} for {len(self)}.")
        if not self.train.length.any():
            raise BadInput("No client has any training example.")

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike | Tensor,
        targets: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor],
        *,
        clients: Rows | Sequence[ArrayLike] | int,
        seed: int = 0,
        test: tuple[ArrayLike | Tensor, ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor]] | None = None,
        holds: Mapping[str, ArrayLike] | None = None,
    ) -> Federation:
        """A federation over given arrays.

        Args:
            x: one row per example.
            targets: one row per example; a dict of them by objective where there are several.
            clients: their row numbers, one list each; or how many there are (an i.i.d. split).
            seed: of that split.
            test: arrays (x, targets) that the server evaluates on.
            holds: for each objective, which clients have data for it.
        """
        from polyfed.core.keys import generator

        xs, ys = tensors(x), _named(targets)
        if isinstance(clients, bool | str | bytes | float) or (isinstance(clients, int | np.integer) and clients < 1):
            raise BadInput(f"clients should be a number from 1 on, or lists of row numbers. Found {shown(clients)}.")
        if isinstance(clients, int | np.integer):
            clients = Rows.dealt(generator(seed, "partition").permutation(length(xs)), int(clients))
        if not isinstance(clients, Rows | Sequence | np.ndarray) or getattr(clients, "shape", None) == ():
            raise BadInput(f"clients should be a number from 1 on, or lists of row numbers. Found {shown(clients)}.")
        train = clients if isinstance(clients, Rows) else Rows.of(clients)
        if len(train.order) and not 0 <= train.order.min() <= train.order.max() < length(xs):
            raise BadInput(f"Clients' row numbers should lie between 0 and {length(xs) - 1}. Found {train.order.max()}.")
        server = None
        if test is not None:
            server = np.arange(length(xs), length(xs) + length(tensors(test[0])))
            theirs = _named(test[1])
            if set(theirs) != set(ys):
                raise BadInput(f"Test targets should be those of training, {sorted(ys)}. Found {sorted(theirs)}.")
            ys = {name: _joined([ys[name], theirs[name]], f"test targets {name!r}") for name in ys}
            xs = _joined([xs, tensors(test[0])], "test rows")
        held = {name: _truths(name, column) for name, column in (holds or {}).items()}
        return cls(xs, ys, train, server=server, holds=held)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[ArrayLike | Tensor, ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor]]],
        *,
        test: tuple[ArrayLike | Tensor, ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor]] | None = None,
    ) -> Federation:
        """A federation of one (x, targets) per client; a client holds the objectives it has targets for.

        Args:
            clients: each client's arrays.
            test: arrays (x, targets) that the server evaluates on.
        """
        if not clients or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in clients):
            raise BadInput(f"Clients should be given as (x, targets), one pair each. Found {shown(clients)}.")
        parts = [(tensors(x), _named(targets)) for x, targets in clients]
        names = list(dict.fromkeys(name for _, targets in parts for name in targets))
        like = {name: next(t[name] for _, t in parts if name in t) for name in names}

        def column(name: str) -> Tensor:
            blank = [t.get(name, like[name].new_zeros((length(x), *like[name].shape[1:]))) for x, t in parts]
            made: Tensor = _joined(blank, f"clients' targets {name!r}")
            return made

        lengths = np.array([length(x) for x, _ in parts], dtype=np.int64)
        rows = Rows(np.arange(lengths.sum()), np.cumsum(lengths) - lengths, lengths)
        holds = {name: [name in t for _, t in parts] for name in names if name}
        x, targets = _joined([x for x, _ in parts], "clients' rows"), {name: column(name) for name in names}
        return cls.from_arrays(x, targets, clients=rows, test=test, holds=holds)

    def __len__(self) -> int:
        return len(self.train)

    def __repr__(self) -> str:
        names = ", ".join(name for name in self.targets if name) or "one target"
        return f"Federation({len(self)} clients, {self.size} rows, {names})"

    @property
    def size(self) -> int:
        """The number of rows of all clients and of the server."""
        return length(self.x)

    @property
    def examples(self) -> Index:
        """Number of training examples of each client."""
        return self.train.length

    def matrix(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """A: clients x objectives, true where the client has data for the objective."""
        if self.labelled:
            return self.fractions(names) > 0
        if not self.holds:
            return np.broadcast_to(np.True_, (len(self), len(names)))
        everyone = np.ones(len(self), dtype=bool)
        return np.stack([self.holds.get(name, everyone) for name in names], 1)

    def fractions(self, names: Sequence[str]) -> NDArray[Any]:
        """n_is / n_i: which part of a client's training examples has a label for an objective that it holds."""
        if not self.labelled:
            return self.matrix(names)
        everyone = np.ones(len(self))
        own = [self.holds.get(name, everyone) * self._labelled_part(name) for name in names]
        return np.stack(own, 1)

    def _labelled_part(self, name: str) -> NDArray[np.float64]:
        labelled = self.labelled.get("", self.labelled.get(name))
        if labelled is None:
            return np.ones(len(self))
        order = labelled.cpu().numpy()[self.train.order].astype(np.int64)
        before = np.concatenate([[0], np.cumsum(np.concatenate([order, order]))])  # twice: stretches wrap
        found = before[self.train.start + self.train.length] - before[self.train.start]
        return np.asarray(found / np.maximum(self.train.length, 1))

    def rows(self, split: str, client: int) -> Index:
        """A client's row numbers in 'train', 'valid' or 'test'."""
        rows: Rows | None = getattr(self, split)
        if rows is None:
            raise BadInput(f"The clients have no {split} rows; set data.{split} to the fraction they keep aside.")
        return rows[client]

    @property
    def streamed(self) -> bool:
        """Whether x is read from a source, and not held in memory."""
        return isinstance(self.x, Source)

    def read(self, rows: Index) -> Nested:
        """The x of some rows, read from its source; NaN and infinity are refused where no `prepare` may mend them."""
        return read(self.x, rows, finite=self.prepare is None)

    def take(self, rows: Tensor, mask: Tensor | None = None, x: Nested = None) -> Batch:
        """The examples of some row numbers, where the arrays are; x where somebody has read it already."""
        if x is None and isinstance(self.x, Source):
            x = self.read(rows.numpy())
        rows = rows.to(leaves(self.x if x is None else x)[0].device)
        return self.taken(lambda t: t.index_select(0, rows), mask, x)

    def taken(self, of: Callable[[Tensor], Tensor], mask: Tensor | None = None, x: Nested = None) -> Batch:
        """A batch, from what takes some rows of a tensor; x where it has been read."""
        x = mapped(of, self.x) if x is None else x
        named = ({name: of(t) for name, t in some.items()} for some in (self.targets, self.columns, self.labelled))
        targets, columns, labelled = named
        return Batch(self.prepare(x) if self.prepare else x, targets, mask, columns, labelled)

    def moved(self, device: torch.device) -> Federation:
        """The same with its arrays on a device; who owns which row stays with the host."""
        there = copy.copy(self)  # not `replace`, whose checks would look at every row once more
        x = Placed(self.x, device) if isinstance(self.x, Source) else mapped(lambda t: t.to(device), self.x)
        object.__setattr__(there, "x", x)
        for what in ("targets", "columns", "labelled"):
            object.__setattr__(there, what, {name: t.to(device) for name, t in getattr(self, what).items()})
        return there

    def alone(self, client: int) -> Federation:
        """A federation of this one client with copies of its own rows and nothing else, as a real client has; of a
        source, with the numbers of its rows."""
        splits = {s: self.rows(s, client) for s in SPLITS if getattr(self, s) is not None}
        lengths = np.cumsum([0, *(len(rows) for rows in splits.values())])
        places = {s: Rows.of([np.arange(a, b)]) for s, a, b in zip(splits, lengths, lengths[1:], strict=False)}
        return replace(
            self._only(np.concatenate(list(splits.values()))),
            train=places["train"],
            valid=places.get("valid"),
            test=places.get("test"),
            holds={name: held[client : client + 1] for name, held in self.holds.items()},
        )

    def shard(self, first: int, last: int) -> Federation:
        """Clients first, ..., last - 1 with the rows that they have, for a worker that looks after them."""
        splits = {s: [self.rows(s, c) for c in range(first, last)] for s in SPLITS if getattr(self, s) is not None}
        used = np.unique(np.concatenate([rows for lists in splits.values() for rows in lists]))
        places = {s: Rows.of([np.searchsorted(used, rows) for rows in lists]) for s, lists in splits.items()}
        holds = {name: held[first:last] for name, held in self.holds.items()}
        train, valid, test = (places.get(s) for s in SPLITS)
        assert train is not None
        return replace(self._only(used), train=train, valid=valid, test=test, holds=holds)

    def pooled(self) -> Federation:
        """One client with everybody's rows, each once: what a centralised reference trains on."""
        if any(not held.all() for held in self.holds.values()):
            raise BadInput("Pooling needs clients that all hold every objective; leave data.holds at 'all'.")

        def all_of(rows: Rows | None) -> Rows | None:
            return None if rows is None else Rows.of([np.unique(np.concatenate([rows[c] for c in range(len(rows))]))])

        train = all_of(self.train)
        assert train is not None
        return replace(self, train=train, valid=all_of(self.valid), test=all_of(self.test), holds={})

    def at_server(self) -> Federation:
        """The server's test data as a federation of one, so that evaluation is the same work everywhere."""
        assert self.server is not None
        rows = Rows.of([np.arange(len(self.server))])
        return replace(self._only(self.server), train=rows, valid=None, test=rows, holds={})

    def _only(self, rows: Index) -> Federation:
        index = torch.from_numpy(rows)
        tables = ({name: t[index] for name, t in table.items()} for table in (self.targets, self.columns, self.labelled))
        targets, columns, labelled = tables
        x = self.x.select(rows) if isinstance(self.x, Source) else mapped(lambda t: t[index], self.x)
        return replace(
            self, x=x, targets=targets, columns=columns, labelled=labelled,
            train=Rows.of([np.arange(len(rows))]), valid=None, test=None, holds={}, server=None, labels=None,
            minimiser=None,
        )  # fmt: skip


def fill_missing(
    targets: Mapping[str, Tensor], labelled: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Targets with 0 where a label is missing, and which rows have one, for the targets that lack some."""
    filled, found = dict(targets), dict(labelled)
    for name, target in targets.items():
        if name in found or type(target) is not Tensor:  # a tensor without values, of which only shapes are known
            continue
        if not (missing := _missing(target)).any():
            continue
        found[name] = ~missing
        blank = missing.reshape(-1, *[1] * (target.dim() - 1))
        filled[name] = torch.where(blank, torch.zeros((), dtype=target.dtype, device=target.device), target)
    return filled, found


MISSING = -100  # the class number that torch's losses ignore


def _missing(target: Tensor) -> Tensor:
    """Which rows have no label: NaN in them, or nothing but -100 where no other number is negative."""
    rows = target.reshape(len(target), -1)
    if target.is_floating_point():
        return rows.isnan().any(1) if bool(rows.isnan().any()) else rows.new_zeros(1, dtype=torch.bool)
    if target.dtype == torch.bool or not rows.numel() or int(rows.min()) != MISSING:
        return rows.new_zeros(1, dtype=torch.bool)
    gone = rows == MISSING
    if bool(((rows < 0) & ~gone).any()):  # then -100 is a number like the others
        return rows.new_zeros(1, dtype=torch.bool)
    return gone.all(1)


def _row_numbers(rows: ArrayLike, client: int) -> NDArray[Any]:
    try:
        made = np.asarray(rows)
        if made.ndim and (not made.size or made.dtype.kind in "iu"):
            return made
    except ValueError:  # lists of unequal length
        pass
    raise BadInput(
        f"Clients should be given as one list of row numbers each, or as their number. Found {shown(rows)} for client "
        f"{client}; from a column of owners make [np.flatnonzero(column == owner) for owner in np.unique(column)]."
    )


def _joined(parts: Sequence[Nested], what: str) -> Nested:
    """The rows of several structures of one kind, one after another."""
    try:
        return joined(parts)
    except (RuntimeError, TypeError, ValueError) as error:
        shapes = shown([[tuple(t.shape[1:]) for t in leaves(part)] for part in parts])
        raise BadInput(f"The {what} should be of one shape and type. Found rows of shapes {shapes}.") from error


def _truths(name: str, column: ArrayLike) -> NDArray[np.bool_]:
    try:
        made = np.asarray(column, dtype=bool)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"'holds' of {name!r} should be true or false for each client. Found {shown(column)}."
        ) from error
    if made.ndim != 1:
        raise BadInput(f"'holds' of {name!r} should be true or false for each client. Found {shown(column)}.")
    return made


def _named(targets: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor]) -> dict[str, Tensor]:
    if isinstance(targets, Mapping):
        return {name: one_tensor(values) for name, values in targets.items()}
    return {"": one_tensor(targets)}
