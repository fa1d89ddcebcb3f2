"""What replies to one kind of request look like, whatever the round: the columns of their table, their bounds, and what
of it the guard compares. To put it together takes longer than to look at the replies, so an engine keeps it
(`core/expecting.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from polyfed.core.columns import Columns, columns_of
from polyfed.core.facts import Facts
from polyfed.core.guard import LIMIT, LOOSE
from polyfed.core.schema import Field, Fields, Schema, schema_of

if TYPE_CHECKING:
    from polyfed.core.fleet import Population

COMPARED = ("update", "gradient", "buffers", "losses")  # the roles that the guard looks at


class Compared(NamedTuple):
    """One number that the guard compares with other clients'.

    Args:
        label: what it is, in words.
        at: its column.
        per: the column that it is divided by, -1 for none.
        root: of which it is taken.
        by: the power of the client's weight in it, where replies come weighed.
        times: how many times farther than others it may be; infinite where it is only noted.
        floor: added to it: what is far below that is alike.
        whole: whether it is over all objectives.
        row: the objective whose weight is in it, where weights are by objective, else -1.
        objective: whose it is where it counts only for those who hold that objective, else -1.
        buffer: the server's buffer of whose length its floor is a part, else -1.
    """

    label: str
    at: int
    per: int = -1
    root: float = 1
    by: float = 0
    times: float = 1.0
    floor: float = 0.0
    whole: bool = False
    row: int = -1
    objective: int = -1
    buffer: int = -1


class Counted(NamedTuple):
    """A weight that clients send.

    Args:
        at: its columns.
        power: of what the client may count.
        room: times which it may be, as the client's type rounds it.
        by_objective: whether it has an entry for each objective.
        whole: whether it is a number of rows.
        exact: whether it is all that the client counts, and no less.
    """

    at: slice
    power: float
    room: float
    by_objective: bool
    whole: bool
    exact: bool


class Form:
    """What is the same in all exchanges of one kind. It is not changed once it is made: exchanges may share it.

    All that is asked of a stack is one table (`core/columns.py`): a row for each client, and columns for weights and
    losses as they are and for the lengths of everything else. Lengths are not finite where an array is not.

    Args:
        schema: shapes and types.
        fields: what each array means, as it travels. What travels in another form is looked at as it will be unpacked.
        facts: what follows from the problem.
        population: what is known of the clients.
        sizes: of the letters that schemas are written in.
        weighed: whether replies come multiplied by their weights.
        staked: whether requests say what the objectives' weights are.
        strict: whether lengths are limited and honest forms asked for: whether the guard is on.
        measures: whether the work only measures: losses are then figures, and not compared.
        split: the rows that the work is about, 'train', 'valid' or 'test'.
    """

    def __init__(
        self,
        schema: Schema,
        fields: Fields,
        facts: Facts,
        population: Population,
        sizes: Mapping[str, int],
        *,
        weighed: bool = False,
        staked: bool = False,
        strict: bool = True,
        measures: bool = False,
        split: str = "train",
    ) -> None:
        self.schema, self.facts, self.population, self.sizes, self.split = schema, facts, population, sizes, split
        self.strict, self._measures, self.limit = strict, measures, LIMIT if strict else math.inf
        self.packed = {name: f.packed for name in schema if (f := fields[name]).packed is not None}
        self.fields = {**fields, **{name: packed.field for name, packed in self.packed.items()}}
        if self.packed:
            wide = schema_of({n: self.fields[n] for n in self.packed}, sizes, population.dtype)
            schema = {**schema, **wide}
        self._lay_out(columns_of(schema, self.fields, facts, weighed, strict), schema)
        self.tallies = [name for name in schema if self.fields[name].upto]
        self.grams = [(c, s) for c, s in self.columns if c.kind == "gram"]
        self.sums = [s for c, s in self.columns if c.kind == "sums"] if strict else []
        self._compare(list(self._compared()), weighed, staked)

    def _lay_out(self, every: Iterator[Columns], schema: Schema) -> None:
        """The columns side by side, and what they may be at least and at most."""
        self.columns: list[tuple[Columns, slice]] = []
        width = 0
        for columns in every:
            self.columns.append((columns, slice(width, width + columns.width)))
            width += columns.width
        self.first = {c.name: s for c, s in reversed(self.columns)}
        self.low, self.high = np.empty((1, width)), np.empty((1, width))
        self.limits = {c.name: self._limit(c.name, schema[c.name][1]) for c, _ in self.columns}
        for c, s in self.columns:
            finite = min(self.limits[c.name], np.finfo(np.float64).max)
            self.low[0, s], self.high[0, s] = np.clip(c.low, -finite, finite), np.clip(c.high, -finite, finite)
        weights = [c.name for c, _ in self.columns if c.kind == "weight"]
        self.rooms = {n: 1 + 4 * torch.finfo(schema[n][1]).eps for n in weights}  # n as the client's type rounds it
        self.counted = [self._counted(self.fields[name], name, room) for name, room in self.rooms.items()]

    def _counted(self, f: Field, name: str, room: float) -> Counted:
        return Counted(self.first[name], f.power, room, f.by_objective, f.whole, f.exact and self.strict)

    def _limit(self, name: str, dtype: torch.dtype) -> float:
        """How long an array may be. Figures grow with the rows that they are over, and are only added up: they may be
        as long as their sum over all clients, and a length, stay finite."""
        role = self.fields[name].role
        if not self.strict or not self._measures or role not in ("losses", "statistics") or not dtype.is_floating_point:
            return self.limit
        most = torch.finfo(dtype).max
        return (most if role == "losses" else math.sqrt(most)) / max(len(self.population.examples), 1)

    def _compare(self, every: list[Compared], weighed: bool, staked: bool) -> None:
        """Columns of the guard."""

        def each(name: str, dtype: Any) -> NDArray[Any]:
            return np.array([getattr(one, name) for one in every], dtype=dtype)

        def some(name: str) -> NDArray[np.int64] | None:
            found = each(name, np.int64)
            return found if (found >= 0).any() else None

        self.at, self.by, floor = each("at", np.int64), each("by", np.float64), each("floor", np.float64)
        self.floor = floor if floor.any() else None
        self.per, self.row, self.objective, self.buffer = some("per"), some("row"), some("objective"), some("buffer")
        roots = each("root", np.float64)
        self.roots = 1 / roots if (roots != 1).any() else None
        self.weighs = weighed and bool(self.by.any())
        # Under omega a length counts as it is and per stake: long gradients get small weights, so that either alone
        # would drop honest clients. Far is who is far in both.
        twins = [i for i, one in enumerate(every) if one.whole] if staked else []
        self.twins = [(i, len(every) + k) for k, i in enumerate(twins)]
        self.whole = np.array([*twins, *(there for _, there in self.twins)], dtype=np.int64)
        self.doubled = np.array([*range(len(every)), *twins], dtype=np.int64)
        self.labels = [every[i].label for i in self.doubled]
        self.times = np.array([every[i].times for i in self.doubled], dtype=np.float64)

    def _compared(self) -> Iterator[Compared]:
        for columns, s in self.columns:
            f = self.fields[columns.name]
            alike = f.role in COMPARED if f.alike is None else f.alike
            if columns.kind == "buffers" and alike:
                yield from self._compared_buffers(s, f)
            elif columns.kind == "loss" and alike and not self._measures:
                yield from self._compared_losses(columns, s, f)
            elif columns.kind in ("length", "own", "gram") and (alike or f.role in COMPARED):
                yield from self._compared_lengths(columns, s, f, 1.0 if alike else math.inf)

    def _compared_lengths(self, columns: Columns, s: slice, f: Field, times: float) -> Iterator[Compared]:
        if columns.kind == "length" and f.lengths is not None and self.strict:
            times = math.inf  # what it unpacks to is compared, by objective; this is noted, should a round be spoiled
        apart = columns.kind == "own" or f.by_objective
        step = math.isqrt(columns.width) + 1 if columns.kind == "gram" else 1  # of a matrix, its diagonal
        known = f.per and self.fields[f.per].exact
        by = self.fields[f.by].power if f.by else 0
        for k, at in enumerate(range(s.start, s.stop, step)):
            label = f"its {f.role} {columns.name!r}" + (f" for {self.population.names[k]!r}" if apart else "")
            if not known:
                row, own = (k, -1) if columns.kind != "own" and apart else (-1, k if apart else -1)
                yield Compared(label, at, root=f.power, by=by, times=times, whole=not apart, row=row, objective=own)
            if f.per:
                root = f.power if known else 1
                yield Compared(f"{label} per {f.per!r}", at, per=self.first[f.per].start, root=root, times=times)

    def _compared_losses(self, columns: Columns, s: slice, f: Field) -> Iterator[Compared]:
        by = self.fields[f.by].power if f.by else 0
        nats = self.facts.nats if f.axes else [bool(self.facts.nats.all())]
        for k, at in enumerate(range(s.start, s.stop)):
            label = f"its loss {columns.name!r}" + (f" for {self.population.names[k]!r}" if f.axes else "")
            times, floor = (1.0, 1.0) if nats[k] else (LOOSE, 0.0)
            yield Compared(label, at, by=by, times=times, floor=floor, whole=not f.axes, row=k if f.axes else -1)

    def _compared_buffers(self, s: slice, f: Field) -> Iterator[Compared]:
        by = self.fields[f.by].power if f.by else 0
        for k, at in enumerate(range(s.start, s.stop)):
            yield Compared(f"its change of the buffer {self.facts.buffers[k]!r}", at, by=by, buffer=k)
