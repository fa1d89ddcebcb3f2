"""Whether a reply is what was asked for: its names, shapes and types, finite numbers, weights that the server can
believe, and what honest arrays keep to. Nothing else is let in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyfed.core.client import all_finite
from polyfed.core.columns import ROUNDING, SKEW, Bounds, Columns, columns_of
from polyfed.core.facts import Facts
from polyfed.core.guard import LIMIT, LOOSE, Guard, Lengths
from polyfed.core.schema import Field, Fields, Schema, schema_of

if TYPE_CHECKING:
    from polyfed.core.fleet import Population, Stack
    from polyfed.core.messages import Request

NO_STAKE = 1e-6  # of all weight: what objectives that count for nothing may add up to
COMPARED = ("update", "gradient", "buffers", "losses")  # the roles that the guard looks at
STILL = 1e-6  # of a buffer's length: a change that is none
TINY = 1e-30
WEIGHT = "its weight"
BOUNDLESS = ("holds NaN or infinity", "sums could overflow", f"should be at most {LIMIT:.0e}")  # reasons to refuse


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


class Expected:
    """What the server knows of the replies to a request before any has come.

    All that is asked of a stack is one table (`core/columns.py`): a row for each client, and columns for weights and
    losses as they are and for the lengths of everything else. Lengths are not finite where an array is not.

    Args:
        schema: shapes and types.
        fields: what each array means, as it travels. What travels in another form is looked at as it will be unpacked.
        facts: what follows from the problem.
        most: from a client's number of examples to the most that it may count in a mean.
        population: what is known of the clients.
        request: what is answered; whether replies come multiplied by their weights.
        guard: whether lengths are limited and honest forms asked for.
        measures: whether the work only measures: losses are then figures, and not compared.
        buffers: the server's, which clients started from, where they are known.
        split: the rows that the work is about, 'train', 'valid' or 'test'.
    """

    def __init__(
        self,
        schema: Schema,
        fields: Fields,
        facts: Facts,
        most: Callable[[int], float],
        population: Population,
        request: Request,
        guard: bool = True,
        measures: bool = False,
        buffers: Tensor | None = None,
        split: str = "train",
    ) -> None:
        self.schema, self.facts, self.population = schema, facts, population
        self._packed = {name: f.packed for name in schema if (f := fields[name]).packed is not None}
        self._sizes = population.sizes(request) if self._packed else {}
        self.fields = {**fields, **{name: packed.field for name, packed in self._packed.items()}}
        if self._packed:
            wide = schema_of({n: self.fields[n] for n in self._packed}, self._sizes, population.dtype)
            schema = {**schema, **wide}
        self.weighed, self.strict, self.limit = request.weighed, guard, LIMIT if guard else math.inf
        self._most, self._measures = cache(most), measures
        self._rows, self._aside = population.rows(split), split != "train"
        self._columns: list[tuple[Columns, slice]] = []
        at = 0
        for columns in columns_of(schema, self.fields, facts, request, buffers, guard):
            self._columns.append((columns, slice(at, at + columns.width)))
            at += columns.width
        self._first = {c.name: s for c, s in reversed(self._columns)}
        self._low, self._high = np.empty((1, at)), np.empty((1, at))
        self._limits = {c.name: self._limit(c.name, schema[c.name][1]) for c, _ in self._columns}
        for c, s in self._columns:
            finite = min(self._limits[c.name], np.finfo(np.float64).max)
            self._low[0, s], self._high[0, s] = np.clip(c.low, -finite, finite), np.clip(c.high, -finite, finite)
        weights = [c.name for c, _ in self._columns if c.kind == "weight"]
        self._weights = {n: 1 + 4 * torch.finfo(schema[n][1]).eps for n in weights}  # n as the client's type rounds it
        self._tallies = [name for name in schema if self.fields[name].upto]
        self._grams = [(c, s) for c, s in self._columns if c.kind == "gram"]
        self._sums = [s for c, s in self._columns if c.kind == "sums"] if guard else []
        self._compare(list(self._compared(buffers)), request.shared.get("omega"))

    def _limit(self, name: str, dtype: torch.dtype) -> float:
        """How long an array may be. Figures grow with the rows that they are over, and are only added up: they may be
        as long as their sum over all clients, and a length, stay finite."""
        role = self.fields[name].role
        if not self.strict or not self._measures or role not in ("losses", "statistics") or not dtype.is_floating_point:
            return self.limit
        most = torch.finfo(dtype).max
        return (most if role == "losses" else math.sqrt(most)) / max(len(self.population.examples), 1)

    def _compare(self, every: list[Compared], omega: Tensor | None) -> None:
        """Columns of the guard.

        omega: the objectives' weights in what clients descend, where they hold different ones: a client whose
            objectives count little honestly sends little, so that lengths are divided by what its own count together.
        """
        numbers = np.array([(c.at, c.per, c.row, c.objective, c.whole) for c in every], dtype=np.int64).reshape(-1, 5).T
        figures = np.array([(c.root, c.by, c.floor) for c in every], dtype=np.float64).reshape(-1, 3).T
        self._at, self._whole = numbers[0], numbers[4].astype(bool)
        self._per, self._row, self._objective = (a if (a >= 0).any() else None for a in numbers[1:4])
        self._roots, self._by, self._floor = figures
        self._rooted, weighs, self._floored = ((self._roots != 1).any(), self._by.any(), self._floor.any())
        self._weighs = self.weighed and bool(weighs)
        self._omega = None if omega is None else omega.double().abs().numpy(force=True)
        # Under omega a length counts as it is and per stake: long gradients get small weights, so that either alone
        # would drop honest clients. Far is who is far in both.
        twins = [i for i, one in enumerate(every) if one.whole] if omega is not None else []
        self.twins = [(i, len(every) + k) for k, i in enumerate(twins)]
        self.labels = [c.label for c in every] + [every[i].label for i in twins]
        self.times = [c.times for c in every] + [every[i].times for i in twins]

    def guard(self, floor: Lengths | None = None) -> Guard:
        """For one exchange's replies; floor: what the medians are at least."""
        return Guard(self.labels, self.strict, self.twins, self.times, floor)

    def _compared(self, buffers: Tensor | None) -> Iterator[Compared]:
        for columns, s in self._columns:
            f = self.fields[columns.name]
            alike = f.role in COMPARED if f.alike is None else f.alike
            if columns.kind == "buffers" and alike:
                yield from self._compared_buffers(columns, s, f, buffers)
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
                yield Compared(f"{label} per {f.per!r}", at, per=self._first[f.per].start, root=root, times=times)

    def _compared_losses(self, columns: Columns, s: slice, f: Field) -> Iterator[Compared]:
        by = self.fields[f.by].power if f.by else 0
        nats = self.facts.nats if f.axes else [bool(self.facts.nats.all())]
        for k, at in enumerate(range(s.start, s.stop)):
            label = f"its loss {columns.name!r}" + (f" for {self.population.names[k]!r}" if f.axes else "")
            times, floor = (1.0, 1.0) if nats[k] else (LOOSE, 0.0)
            yield Compared(label, at, by=by, times=times, floor=floor, whole=not f.axes, row=k if f.axes else -1)

    def _compared_buffers(self, columns: Columns, s: slice, f: Field, buffers: Tensor | None) -> Iterator[Compared]:
        by = self.fields[f.by].power if f.by else 0
        still = np.zeros(columns.width)
        if buffers is not None:
            np.add.at(still, self.facts.pieces.numpy(), buffers.double().numpy(force=True) ** 2)
        for k, at in enumerate(range(s.start, s.stop)):
            label = f"its change of the buffer {self.facts.buffers[k]!r}"
            yield Compared(label, at, by=by, floor=STILL * math.sqrt(still[k]))

    def validated(self, stack: Stack) -> tuple[Stack, Lengths]:
        """The stack without replies that are not what was asked for, which are named; and the lengths of the rest."""
        if bad := unlike(stack, self.schema):
            stack = stack.drop(bad)
        if not len(stack.clients):
            return stack, np.zeros((0, len(self.labels)))
        clients = list(stack.clients)
        most = self._counts(clients)  # all that is known first: a GPU may still be at work
        stakes = self._stakes(clients, most)
        (low, high), units = self._bounded(stakes, most), self._units(stakes, most)
        seen = self._unpacked(stack)
        table = self._table(seen)
        bad = self._wrong_tallies(seen) if self._tallies else {}
        if self._sums:
            low, high = self._bounded_sums(table, low, high)
        if self._grams:
            bad |= self._wrong_grams(clients, table)
        if not ((table >= low) & (table <= high)).all():  # NaN is neither
            wrong = self._wrong_entries(seen, table, low, high)
            bad |= {**wrong, **self._wrong_values(seen), **{c: why for c, why in wrong.items() if WEIGHT in why}}
        with np.errstate(invalid="ignore", over="ignore"):  # of those that are left out
            lengths = self._lengths(table, units, clients)
        if self._per is not None:
            bad |= {c: why for c, why in self._beyond(clients, lengths, self._per).items() if c not in bad}
        if self.twins:
            lengths = self._with_stakes(lengths, stakes)
        if not bad:
            return stack, lengths
        return stack.drop(bad), lengths[[client not in bad for client in clients]]

    def _unpacked(self, stack: Stack) -> Stack:
        """The stack as the method will see it."""
        if not self._packed:
            return stack
        wide = {n: packed(stack.arrays, self._sizes, self.population.dtype) for n, packed in self._packed.items()}
        return replace(stack, arrays={**stack.arrays, **wide})

    def _table(self, stack: Stack) -> Lengths:
        some = [columns.see(stack) for columns, _ in self._columns]
        if not some:
            return np.zeros((len(stack.clients), 0))
        found: Lengths = torch.cat(some, 1).numpy(force=True).astype(np.float64)
        for name in self._weights:
            if self.fields[name].whole:  # what is not whole is out of bounds
                own = found[:, self._first[name]]
                own[own != np.round(own)] = np.nan
        return found

    def _counts(self, clients: list[int]) -> Lengths:
        """What each client counts, as a column."""
        examples = self._rows[clients].tolist()
        return np.array([self._most(n) for n in examples], dtype=np.float64).reshape(-1, 1)

    def _stakes(self, clients: list[int], most: Lengths) -> Lengths:
        """What part of what it counts each client counts for each objective: by size, the part that has a label."""
        if self._aside:  # of rows kept aside nobody has said how many have a label
            return self.population.allowed[clients].astype(np.float64)
        holds = self.population.holds[clients]
        if self.population.labelled is None:
            return holds.astype(np.float64)
        by_size = most == self.population.examples[clients].reshape(-1, 1)
        return np.asarray(np.where(by_size, self.population.fractions[clients], holds), dtype=np.float64)

    def _bounded(self, stakes: Lengths, most: Lengths) -> tuple[Bounds, Bounds]:
        """The least and the most that each entry of the table may be."""
        low, high = self._low, self._high.repeat(len(most), 0)
        for name, room in self._weights.items():
            f, at = self.fields[name], self._first[name]
            own = most**f.power * room
            if f.by_objective:
                own = np.where(stakes > 0, own * np.where(stakes > 0, stakes, 1.0), 0.0)  # `own` may be infinite
            high[:, at] = own
            if f.exact and self.strict:
                low = low.repeat(len(most), 0) if low is self._low else low
                low[:, at] = own / room**2
        return low, high

    def _bounded_sums(self, table: Lengths, low: Bounds, high: Bounds) -> tuple[Bounds, Bounds]:
        """Sums of measured values are bounded by the rows that they are over, where the reply says how many."""
        rows = next((n for n in self._weights if self.fields[n].whole and self.fields[n].by_objective), None)
        low = low.copy()
        for s in self._sums if rows is not None else ():
            n = np.maximum(table[:, self._first[rows]], 0.0)[:, self.facts.objective]
            with np.errstate(invalid="ignore"):  # 0 rows, and no bound
                high[:, s] = np.fmin(high[:, s], self.facts.most * n * (1 + 1e-4) + ROUNDING)
            low[:, s] = np.maximum(low[:, s], self.facts.least - ROUNDING)
        return low, high

    def _units(self, stakes: Lengths, most: Lengths) -> Lengths | None:
        """What lengths are divided by: the weight that the server knows, where clients have multiplied by it."""
        if not self._weighs or not (most != 1).any():
            return None
        units = most**self._by
        if self.population.labelled is not None and self._row is not None:
            part = np.where(stakes > 0, stakes, 1.0)[:, np.maximum(self._row, 0)]
            units = units * np.where(self._row >= 0, part, 1.0)
        return np.asarray(units)

    def _lengths(self, table: Lengths, units: Lengths | None, clients: list[int]) -> Lengths:
        """Per unit, and of products of gradients their root."""
        found = np.abs(table[:, self._at])
        if not len(self._at):
            return found
        if self._per is not None:
            divided = found / np.maximum(np.abs(table[:, np.maximum(self._per, 0)]), TINY)
            found = np.where(self._per >= 0, divided, found)
        found = found if units is None else found / units
        if self._floored:
            found = np.where(found > 0, found + self._floor, 0.0)
        if self._objective is not None:
            held = self.population.holds[clients][:, np.maximum(self._objective, 0)]
            found = np.where(held | (self._objective < 0), found, 0.0)
        return found ** (1 / self._roots) if self._rooted else found

    def _with_stakes(self, lengths: Lengths, stakes: Lengths) -> Lengths:
        """The lengths, and those over all objectives once more, divided by what the client's own count together.

        Who has next to no stake has negative ones: they make no median (`guard.medians`), and are compared, too.
        """
        assert self._omega is not None
        stake, least = stakes @ self._omega, NO_STAKE * self._omega.sum()
        some = stake > least
        unit = np.where(some, stake, max(least, np.finfo(float).tiny))[:, None]
        sign = np.where(some, 1.0, -1.0)[:, None]
        whole = lengths[:, self._whole] * sign
        lengths = lengths.copy()
        lengths[:, self._whole] = whole
        return np.concatenate([lengths, whole / unit], axis=1)

    def _wrong_values(self, stack: Stack) -> dict[int, str]:
        """Who sends what is not finite, or too long to be squared."""
        bad: dict[int, str] = {}
        names = [n for n in self._first if stack[n].is_floating_point()]
        for name in (n for n in names if n not in self._weights or not all_finite(stack[n])):
            a = stack[name]
            for i, client in enumerate(stack.clients):
                if not all_finite(a[i]):
                    bad[client] = f"{name!r} holds NaN or infinity"
                elif (length := float(a[i].double().norm())) > (limit := self._limits[name]):
                    why = f"above {limit:.0e} the server's sums could overflow"
                    bad[client] = f"{name!r} has the length {length:.2g}; {why} (guard = 'off' lets it in)"
        return bad

    def _wrong_entries(self, stack: Stack, table: Lengths, low: Bounds, high: Bounds) -> dict[int, str]:
        """Who counts itself negatively or as more than it has, or sends what no honest client could."""
        bad: dict[int, str] = {}
        for columns, s in sorted(self._columns, key=lambda one: one[0].kind != "weight"):
            own = table[:, s]
            outside = ~((own >= np.broadcast_to(low, table.shape)[:, s]) & (own <= high[:, s]))
            stated = columns.see(stack).tolist() if outside.any() else []
            for i, k in np.argwhere(outside).tolist():
                at = s.start + k
                why = self._why(columns, k, stated[i][k], np.broadcast_to(low, table.shape)[i, at], high[i, at])
                if why and stack.clients[i] not in bad:
                    bad[stack.clients[i]] = why
        return bad

    def _why(self, columns: Columns, k: int, found: float, low: float, high: float) -> str:
        """What is wrong with an entry, in words; nothing where the guard is off and lengths overflow."""
        name, f = columns.name, self.fields[columns.name]
        upto = f" to {high:.6g}" if math.isfinite(high) and high < self.limit else ""
        if columns.kind == "weight":
            if f.exact and self.strict:
                return f"{WEIGHT} {name!r} is {found:.6g}; it should be {high:.6g}"
            kind = "a whole number from" if f.whole else "from"
            return f"{WEIGHT} {name!r} is {found:.6g}; it should be {kind} 0{upto}"
        if columns.kind == "place":
            return f"{name!r} should hold numbers from 0 to below {f.below}"
        if columns.kind == "deviation":
            return f"the rows of {name!r} should be orthonormal; their products are off by {found:.2g}"
        if columns.kind == "slack" and f.slack is not None:
            return f"{name!r} is lower than the reply's other arrays and its model allow, whatever its rows are"
        if columns.kind == "slack":
            return f"{name!r} should be at most the root of the number of rows times {f.squares!r}"
        if columns.kind in ("loss", "sums", "least"):
            which = f" for {self._objective_of(columns, k)!r}" if columns.width > 1 else ""
            what = "the variances in " if f.role == "buffers" else ""
            least = 0.0 if -1 < low <= 0 else low  # without what rounding is allowed
            return f"{what}{name!r}{which} is {found:.6g}; it should be from {least:.6g}{upto}"
        return f"{name!r} has the length {found:.2g}; it should be at most {high:.0e}" if self.strict else ""

    def _objective_of(self, columns: Columns, k: int) -> str:
        return self.population.names[self.facts.objective[k] if columns.kind == "sums" else k]

    def _wrong_grams(self, clients: list[int], table: Lengths) -> dict[int, str]:
        """Whose matrices are no products of a matrix with itself, up to rounding."""
        bad: dict[int, str] = {}
        for columns, s in self._grams:
            M = math.isqrt(columns.width)
            sound = _are_grams(np.nan_to_num(table[:, s].reshape(-1, M, M), nan=0.0, posinf=0.0, neginf=0.0))
            why = f"{columns.name!r} should be symmetric and positive semi-definite"
            bad |= {client: why for client, fine in zip(clients, sound.tolist(), strict=True) if not fine}
        return bad

    def _beyond(self, clients: list[int], lengths: Lengths, per: Any) -> dict[int, str]:
        """Who sends a quotient that is too long to be squared."""
        some = np.flatnonzero(per >= 0)
        far = lengths[:, some] > self.limit
        if not far.any():
            return {}
        return {
            clients[i]: f"{self.labels[some[k]]} is {lengths[i, some[k]]:.2g}; it should be at most {self.limit:.0e}"
            for i, k in np.argwhere(far).tolist()
        }

    def _wrong_tallies(self, stack: Stack) -> dict[int, str]:
        """Who counts fewer than no rows, or more than it says there are: in one entry, or in all of a metric's."""
        bad: dict[int, str] = {}
        for name in self._tallies:
            upto = self.fields[name].upto
            heard = stack[upto].double() * self._weights[upto]
            wrong, many = torch.zeros(2, len(heard), dtype=torch.bool, device=heard.device)
            parts = stack[name].double().split_with_sizes([size for size, *_ in self.facts.tallies], 1)
            for own, (_, k, times) in zip(parts, self.facts.tallies, strict=True):
                n = heard[:, k]
                wrong |= ((own < 0) | (own > n.unsqueeze(1))).any(1)
                many |= own.sum(1) > times * n
            bad |= {c: f"{name!r} adds up to more than its rows allow" for c, w in _zipped(stack, many) if w}
            bad |= {c: f"{name!r} should hold whole numbers from 0 to its number of rows"
                    for c, w in _zipped(stack, wrong) if w}  # fmt: skip
        return bad


def _zipped(stack: Stack, each: Tensor) -> Iterator[tuple[int, bool]]:
    return zip(stack.clients, each.tolist(), strict=True)


def _are_grams(G: Lengths) -> Lengths:
    """Whether each matrix is symmetric and positive semi-definite: lengths on its diagonal, and cosines beside it."""
    diagonal = np.diagonal(G, axis1=1, axis2=2)
    roots = np.sqrt(np.maximum(diagonal, 0.0))
    most = roots[:, :, None] * roots[:, None, :]
    skewed = np.abs(G - G.transpose(0, 2, 1)) > 2 * SKEW * most + TINY
    cosines = np.where(most > 0, G / np.maximum(most, TINY), 0.0).clip(-2, 2)
    least = np.linalg.eigvalsh((cosines + cosines.transpose(0, 2, 1)) / 2)[:, 0]
    wrong = (diagonal < 0).any(1) | (skewed | (np.abs(G) > (1 + SKEW) * most + TINY)).any((1, 2))
    return np.asarray(~wrong & (least >= -SKEW * G.shape[1]))


def boundless(why: str) -> bool:
    """Whether a reply failed because its numbers are not finite or too large, and not for what its client is or did.

    Args:
        why: the reason that was given, by the server or by the client itself.
    """
    return any(words in why for words in BOUNDLESS)


def validate_replies(stack: Stack, schema: Schema) -> Stack:
    """The stack without replies that are not what was asked for, or not finite; of sums, of which no more is known."""
    bad = unlike(stack, schema) or dict.fromkeys(not_finite(stack), "it holds NaN or infinity")
    return stack.drop(bad) if bad else stack


def unlike(stack: Stack, schema: Schema) -> dict[int, str]:
    """Why a stack is not as the schema says, by client."""
    why = ""
    if len(stack.clients) and set(stack.arrays) != set(schema):
        why = f"the reply should hold {sorted(schema)}; found {sorted(stack.arrays)}"
    for name, a in stack.arrays.items() if not why else ():
        shape, dtype = schema[name]
        if a.shape[1:] != shape or a.dtype != dtype:
            why = f"{name!r} should be {dtype} of shape {shape}; found {a.dtype} of shape {tuple(a.shape[1:])}"
    return dict.fromkeys(stack.clients, why) if why else {}


def not_finite(stack: Stack) -> list[int]:
    """Whose replies are not finite."""
    if all_finite(*stack.arrays.values()):
        return []
    return [c for i, c in enumerate(stack.clients) if not all_finite(*(a[i] for a in stack.arrays.values()))]
