"""The clients: what each has. One set of arrays and index lists: a million clients cost a million offsets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from polyfed.core.errors import BadInput, shown
from polyfed.core.problem import ARGUMENTS, Batch
from polyfed.core.source import Index as Index
from polyfed.core.source import Placed, Source, read
from polyfed.core.structure import Nested, leaves, length, mapped, one_tensor, tensors

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

    `Federation.from_frame`, `Federation.from_arrays`, `Federation.from_clients` and `Federation.from_datasets` are
    shorter ways to make one.

    A label may be missing in some rows: NaN, or -100 among whole numbers that are else not negative. Such a row does
    not count for that objective, and a client without any training label for it does not hold it; its test rows that
    have one are measured all the same.

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
        names: what the clients are called, in the order of their numbers; nothing where they have no names.
        classes: of targets and columns that were texts, what the numbers 0, 1, ... stand for.
        features: of inputs that were columns of a table, their names, by input; 'x' where there is one input.
        labels: the label of each row, where a picture of the split wants them.
        minimiser: of the one objective, from what every row counts in it to x*, where data know it exactly.
        row_labels: what every row is called in an error, where its number is not what the user knows it by.
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
    names: Sequence[Hashable] = ()
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: NDArray[np.int64] | None = field(default=None, repr=False)
    minimiser: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = field(default=None, repr=False)
    row_labels: NDArray[Any] | None = field(default=None, repr=False)

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
        if taken := next((name for name in self.columns if name in ARGUMENTS), None):
            rest = f"what losses take by itself is called {', '.join(ARGUMENTS)}"
            raise BadInput(f"A column needs a name of its own: {rest}. Found {taken!r}; rename it.")
        targets, labelled = fill_missing(self.targets, self.labelled)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "labelled", labelled)
        for name, held in self.holds.items():
            if len(held) != len(self):
                raise BadInput(f"'holds' needs one entry per client: {name!r} has {len(held)} for {len(self)}.")
        if len(self.names) not in (0, len(self)):
            raise BadInput(f"'names' needs one for each of {len(self)} clients. Found {len(self.names)}.")
        if not self.train.length.any():
            raise BadInput("No client has any training example.")

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        targets: Any,
        *,
        owner: Any = None,
        clients: Rows | Sequence[ArrayLike] | int | None = None,
        columns: Mapping[str, Any] | None = None,
        test: Any = None,
        valid: Any = None,
        seed: int = 0,
        holds: Mapping[str, ArrayLike] | None = None,
        prepare: Callable[[Any], Any] | None = None,
        augment: Callable[[Any, Any], Any] | None = None,
    ) -> Federation:
        """A federation over given arrays.

        Args:
            x: one row per example: an array or a DataFrame, or a dict or tuple of them.
            targets: one row per example; a dict or a DataFrame of them by objective where there are several. Texts
                become class numbers, in the order that `classes` tells.
            owner: of each row, any name or number: a client for each, in sorted order where they can be sorted, else in
                order of appearance.
            clients: in place of owners, the row numbers of each client, one list each; or how many there are, and the
                rows are dealt at random.
            columns: more about every example, by name, for losses and metrics that take them.
            test: a fraction of each client's rows; a mask of rows, or a column that says 'train', 'valid' or 'test';
                a list, or a dict by client, of its own (x, targets); or (x, targets) that the server evaluates on. With
                columns, (x, targets, columns).
            valid: as `test`, but never the server's.
            seed: of what is dealt or kept aside at random.
            holds: for each objective, which clients have data for it.
            prepare: turns a raw batch of x into what the model takes.
            augment: then changes it at random, in training only, by a key.
        """
        from polyfed.core import gather

        way = gather.Way(seed, holds or {}, prepare, augment)
        return gather.from_arrays(x, targets, clients, owner, columns, valid, test, way)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[Any, ...]] | Mapping[Any, tuple[Any, ...]],
        *,
        test: Any = None,
        valid: Any = None,
        seed: int = 0,
        prepare: Callable[[Any], Any] | None = None,
        augment: Callable[[Any, Any], Any] | None = None,
    ) -> Federation:
        """A federation of one (x, targets) per client; a client holds the objectives it has targets for.

        Args:
            clients: each client's arrays, (x, targets) or (x, targets, columns): a list, or a dict by name.
            test, valid, seed, prepare, augment: as in `Federation.from_arrays`.
        """
        from polyfed.core import gather

        return gather.from_clients(clients, valid, test, gather.Way(seed, {}, prepare, augment))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        owner: str,
        x: Any,
        targets: Any,
        columns: Any = None,
        test: Any = None,
        valid: Any = None,
        seed: int = 0,
        prepare: Callable[[Any], Any] | None = None,
        augment: Callable[[Any, Any], Any] | None = None,
    ) -> Federation:
        """A federation over the rows of a table, pandas' or polars'.

        Args:
            frame: the table.
            owner: the column that names the owner of each row: a client for each.
            x: the columns that the model sees, which make a matrix of floats; or a dict by input of such lists, or of
                single columns, which keep their type.
            targets: the columns of the objectives; or a dict from objectives to columns. A missing value is a missing
                label; texts become class numbers, in the order that `classes` tells.
            columns: more columns for losses and metrics that take them; or a dict from names to columns.
            test: as in `Federation.from_arrays`; or the name of a column, true and false or 'train', 'valid' and
                'test'; or another table, of the same owners, or without the column of owners, for the server.
            valid: as `test`, but never the server's.
            seed: of what is kept aside at random.
            prepare: turns a raw batch of x into what the model takes; x may then lack values.
            augment: then changes it at random, in training only, by a key.
        """
        from polyfed.core import gather

        return gather.from_frame(frame, owner, x, targets, columns, valid, test, gather.Way(seed, {}, prepare, augment))

    @classmethod
    def from_datasets(
        cls,
        datasets: Any,
        *,
        owner: Any = None,
        targets: str | Sequence[str] | Mapping[str, str] | None = None,
        test: Any = None,
        valid: Any = None,
        seed: int = 0,
        prepare: Callable[[Any], Any] | None = None,
        augment: Callable[[Any, Any], Any] | None = None,
    ) -> Federation:
        """A federation over torch Datasets, whose items are read when a client's turn comes.

        An item is (x, target), where the target may be a dict by objective, or a dict. It should be the same whenever
        it is read: what is random belongs into `augment`. Targets are held in memory: where `targets` names no
        attribute of the data sets, all items are read once, now.

        Args:
            datasets: one for each client, a list or a dict by name; or one for all, with `owner`.
            owner: of each item, as in `Federation.from_arrays`.
            targets: where the targets are, if not in items (x, target): an attribute of the data set, as 'targets' or
                'labels', or a key of its items; several names, each an objective's; or a dict from objectives to names.
                Of items that are dicts, the rest is x.
            test: as in `Federation.from_arrays`; or a data set for the server; or one for each client.
            valid: as `test`, but never the server's.
            seed, prepare, augment: as in `Federation.from_arrays`.
        """
        from polyfed.core.datasets import from_datasets
        from polyfed.core.gather import Way

        return from_datasets(datasets, owner, targets, valid, test, Way(seed, {}, prepare, augment))

    def __len__(self) -> int:
        return len(self.train)

    def called(self, client: int) -> str:
        """A client as a sentence calls it: by its name, where it has one."""
        return f"client {shown(self.names[client]) if self.names else client}"

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
        """A: clients x objectives, true where the client has training data for the objective."""
        return self.fractions(names) > 0 if self.labelled else self.allowed(names)

    def allowed(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Where `holds` has a client hold an objective: rows that it keeps aside may have labels though none to train
        on has one."""
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
        holds = {name: held[client : client + 1] for name, held in self.holds.items()}
        return self._only(np.concatenate(list(splits.values())))._dealt(places, holds)

    def shard(self, first: int, last: int) -> Federation:
        """Clients first, ..., last - 1 with the rows that they have, for a worker that looks after them."""
        splits = {s: [self.rows(s, c) for c in range(first, last)] for s in SPLITS if getattr(self, s) is not None}
        used = np.unique(np.concatenate([rows for lists in splits.values() for rows in lists]))
        places = {s: Rows.of([np.searchsorted(used, rows) for rows in lists]) for s, lists in splits.items()}
        holds = {name: held[first:last] for name, held in self.holds.items()}
        return self._only(used)._dealt(places, holds)

    def shifted(self, first: int) -> Federation:
        """The same clients, numbered from `first` on; those before them have no rows."""
        splits = {s: rows for s in SPLITS if (rows := getattr(self, s)) is not None}
        later = (first, 0)
        places = {s: Rows(r.order, np.pad(r.start, later), np.pad(r.length, later)) for s, r in splits.items()}
        holds = {name: np.pad(held, later, constant_values=True) for name, held in self.holds.items()}
        return self._dealt(places, holds)

    def _dealt(self, places: Mapping[str, Rows], holds: Mapping[str, NDArray[np.bool_]]) -> Federation:
        """The same rows, whose they are; a client may have rows to be measured on alone."""
        there = copy.copy(self)  # not `replace`, whose checks want training rows
        for name, value in {**{s: places.get(s) for s in SPLITS}, "holds": holds}.items():
            object.__setattr__(there, name, value)
        return there

    def pooled(self) -> Federation:
        """One client with everybody's rows, each once: what a centralised reference trains on."""
        if any(not held.all() for held in self.holds.values()):
            raise BadInput("Pooling needs clients that all hold every objective; leave data.holds at 'all'.")

        def all_of(rows: Rows | None) -> Rows | None:
            return None if rows is None else Rows.of([np.unique(np.concatenate([rows[c] for c in range(len(rows))]))])

        train = all_of(self.train)
        assert train is not None
        return replace(self, train=train, valid=all_of(self.valid), test=all_of(self.test), holds={}, names=())

    def at_server(self) -> Federation:
        """The server's test data as a federation of one, so that evaluation is the same work everywhere."""
        assert self.server is not None
        rows = Rows.of([np.arange(len(self.server))])
        return replace(self._only(self.server), train=rows, valid=None, test=rows, holds={})

    def _only(self, rows: Index) -> Federation:
        index = torch.from_numpy(rows)
        tables = self.targets, self.columns, self.labelled
        targets, columns, labelled = ({name: t[index] for name, t in table.items()} for table in tables)
        x = self.x.select(rows) if isinstance(self.x, Source) else mapped(lambda t: t[index], self.x)
        return replace(
            self, x=x, targets=targets, columns=columns, labelled=labelled,
            train=Rows.of([np.arange(len(rows))]), valid=None, test=None, holds={}, server=None, labels=None,
            minimiser=None, names=(), row_labels=None,
        )  # fmt: skip


def fill_missing(
    targets: Mapping[str, Tensor], labelled: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Targets with a label that occurs where one is missing, and which rows have one, for the targets that lack some.

    A loss is computed for such rows, too, before they are left out: it may divide by the target or take its log.
    """
    filled, found = dict(targets), dict(labelled)
    for name, target in targets.items():
        if name in found or type(target) is not Tensor:  # a tensor without values, of which only shapes are known
            continue
        if not (missing := _missing(target)).any():
            continue
        found[name] = ~missing
        blank = missing.reshape(-1, *[1] * (target.dim() - 1))
        present = target[int(missing.long().argmin())]  # the first one
        filled[name] = torch.where(blank, torch.zeros_like(present) if missing.all() else present, target)
    return filled, found


MISSING = -100  # the class number that torch's losses ignore


def _missing(target: Tensor) -> Tensor:
    """Which rows have no label: NaN in them, or nothing but -100 where no other number is negative."""
    if not target.numel():
        return torch.zeros(1, dtype=torch.bool)
    rows = target.reshape(len(target), -1)
    if target.is_floating_point():
        return rows.isnan().any(1) if bool(rows.isnan().any()) else rows.new_zeros(1, dtype=torch.bool)
    if target.is_complex() or target.dtype == torch.bool or int(rows.min()) != MISSING:
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
        f"{client}; a column of owners is given as owner=."
    )
