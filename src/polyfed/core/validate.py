"""Whether a reply is what was asked for: its names, shapes and types, finite numbers, weights that the server can
believe, and what honest arrays keep to. Nothing else is let in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.client import all_finite
from polyfed.core.columns import ROUNDING, SKEW, Asked, Bounds, Columns
from polyfed.core.form import Form
from polyfed.core.guard import LIMIT, Guard, Lengths
from polyfed.core.schema import Schema

if TYPE_CHECKING:
    from polyfed.core.fleet import Stack
    from polyfed.core.messages import Request

NO_STAKE = 1e-6  # of all weight: what objectives that count for nothing may add up to
STILL = 1e-6  # of a buffer's length: a change that is none
TINY = 1e-30
WEIGHT = "its weight"
Places = NDArray[np.int64]  # of some clients
BOUNDLESS = ("holds NaN or infinity", "sums could overflow", f"should be at most {LIMIT:.0e}")  # reasons to refuse


class Expected:
    """What the server knows of the replies to a request before any has come.

    Args:
        form: what is the same in all exchanges of this kind.
        request: what is answered.
        most: from a client's number of examples to the most that it may count in a mean.
        known: what `most` has said so far, of a request with the same options; it is added to.
        buffers: the server's, which clients started from, where they are known.
    """

    def __init__(
        self,
        form: Form,
        request: Request,
        most: Callable[[int], float],
        known: dict[int, float],
        buffers: Tensor | None = None,
    ) -> None:
        self.form, self.population, self.facts, self.fields = form, form.population, form.facts, form.fields
        self.labels, self.twins = form.labels, form.twins
        self._asked = Asked(request, buffers)
        self._most, self._known = most, known
        self._rows, self._aside = form.population.rows(form.split), form.split != "train"
        # The objectives' weights in what clients descend, where they hold different ones: a client whose objectives
        # count little honestly sends little, so that lengths are divided by what its own count together.
        omega = request.shared.get("omega")
        self._omega = None if omega is None else np.abs(np.array(omega.tolist(), dtype=np.float64))
        self._least = 0.0 if self._omega is None else NO_STAKE * np.add.reduce(self._omega)  # a stake
        self._floor = form.floor if form.buffer is None or buffers is None else self._floor_of(buffers, form.buffer)

    def _floor_of(self, buffers: Tensor, which: NDArray[np.int64]) -> Lengths:
        """What is added to lengths: to a buffer's change, next to nothing of that buffer's length."""
        squares = np.zeros(len(self.facts.buffers))
        np.add.at(squares, self.facts.pieces.numpy(), buffers.double().numpy(force=True) ** 2)
        others = 0.0 if self.form.floor is None else self.form.floor
        return np.where(which >= 0, STILL * np.sqrt(squares[which]), others)

    def guard(self, floor: Lengths | None = None) -> Guard:
        """For one exchange's replies; floor: what the medians are at least."""
        return Guard(self.labels, self.form.strict, self.twins, self.form.times, floor)

    def validated(self, stack: Stack) -> tuple[Stack, Lengths]:
        """The stack without replies that are not what was asked for, which are named; and the lengths of the rest."""
        form = self.form
        if bad := unlike(stack, form.schema):
            stack = stack.drop(bad)
        if not len(stack.clients):
            return stack, np.zeros((0, len(self.labels)))
        clients = list(stack.clients)
        rows = np.array(clients)
        most = self._counts(rows)  # all that is known first: a GPU may still be at work
        stakes = self._stakes(rows, most)
        (low, high), units = self._bounded(stakes, most), self._units(stakes, most)
        seen = self._unpacked(stack)
        table = self._table(seen)
        bad = self._wrong_tallies(seen) if form.tallies else {}
        if form.sums:
            low, high = self._bounded_sums(table, low, high)
        if form.grams:
            bad |= self._wrong_grams(clients, table)
        if not ((table >= low) & (table <= high)).all():  # NaN is neither
            wrong = self._wrong_entries(seen, table, low, high)
            bad |= {**wrong, **self._wrong_values(seen), **{c: why for c, why in wrong.items() if WEIGHT in why}}
        with np.errstate(invalid="ignore", over="ignore"):  # of those that are left out
            lengths = self._lengths(table, units, rows)
        if form.per is not None:
            bad |= {c: why for c, why in self._beyond(clients, lengths, form.per).items() if c not in bad}
        if self.twins:
            lengths = self._with_stakes(lengths, stakes)
        if not bad:
            return stack, lengths
        return stack.drop(bad), lengths[[client not in bad for client in clients]]

    def _unpacked(self, stack: Stack) -> Stack:
        """The stack as the method will see it."""
        form = self.form
        if not form.packed:
            return stack
        wide = {n: packed(stack.arrays, form.sizes, self.population.dtype) for n, packed in form.packed.items()}
        return replace(stack, arrays={**stack.arrays, **wide})

    def _table(self, stack: Stack) -> Lengths:
        some = [columns.see(stack, self._asked) for columns, _ in self.form.columns]
        if not some:
            return np.zeros((len(stack.clients), 0))
        found: Lengths = torch.cat(some, 1).numpy(force=True).astype(np.float64)
        for weight in self.form.counted:
            if weight.whole:  # what is not whole is out of bounds
                own = found[:, weight.at]
                own[own != np.round(own)] = np.nan
        return found

    def _counts(self, rows: Places) -> Lengths:
        """What each client counts, as a column."""
        known, examples = self._known, self._rows[rows].tolist()
        for n in examples:
            if n not in known:
                known[n] = self._most(n)
        return np.array([known[n] for n in examples], dtype=np.float64).reshape(-1, 1)

    def _stakes(self, rows: Places, most: Lengths) -> Lengths:
        """What part of what it counts each client counts for each objective: by size, the part that has a label."""
        if self._aside:  # of rows kept aside nobody has said how many have a label
            return self.population.allowed[rows].astype(np.float64)
        holds = self.population.holds[rows]
        if self.population.labelled is None:
            return holds.astype(np.float64)
        by_size = most == self.population.examples[rows].reshape(-1, 1)
        return np.asarray(np.where(by_size, self.population.fractions[rows], holds), dtype=np.float64)

    def _bounded(self, stakes: Lengths, most: Lengths) -> tuple[Bounds, Bounds]:
        """The least and the most that each entry of the table may be."""
        form = self.form
        low, high = form.low, form.high.repeat(len(most), 0)
        for weight in form.counted:
            own = (most if weight.power == 1 else most**weight.power) * weight.room
            if weight.by_objective:  # `own` may be infinite, and is 0 all the same where there is no stake
                own = np.multiply(own, stakes, where=stakes > 0, out=np.zeros(stakes.shape))
            high[:, weight.at] = own
            if weight.exact:
                low = low.repeat(len(most), 0) if low is form.low else low
                low[:, weight.at] = own / weight.room**2
        return low, high

    def _bounded_sums(self, table: Lengths, low: Bounds, high: Bounds) -> tuple[Bounds, Bounds]:
        """Sums of measured values are bounded by the rows that they are over, where the reply says how many."""
        form = self.form
        rows = next((weight.at for weight in form.counted if weight.whole and weight.by_objective), None)
        low = low.copy()
        for s in form.sums if rows is not None else ():
            n = np.maximum(table[:, rows], 0.0)[:, self.facts.objective]
            with np.errstate(invalid="ignore"):  # 0 rows, and no bound
                high[:, s] = np.fmin(high[:, s], self.facts.most * n * (1 + 1e-4) + ROUNDING)
            low[:, s] = np.maximum(low[:, s], self.facts.least - ROUNDING)
        return low, high

    def _units(self, stakes: Lengths, most: Lengths) -> Lengths | None:
        """What lengths are divided by: the weight that the server knows, where clients have multiplied by it."""
        form = self.form
        if not form.weighs or not (most != 1).any():
            return None
        units = most**form.by
        if self.population.labelled is not None and form.row is not None:
            part = np.where(stakes > 0, stakes, 1.0)[:, np.maximum(form.row, 0)]
            units = units * np.where(form.row >= 0, part, 1.0)
        return np.asarray(units)

    def _lengths(self, table: Lengths, units: Lengths | None, rows: Places) -> Lengths:
        """Per unit, and of products of gradients their root."""
        form = self.form
        found = np.abs(table.take(form.at, 1))
        if not len(form.at):
            return found
        if form.per is not None:
            divided = found / np.maximum(np.abs(table[:, np.maximum(form.per, 0)]), TINY)
            found = np.where(form.per >= 0, divided, found)
        found = found if units is None else found / units
        if self._floor is not None:
            found = np.where(found > 0, found + self._floor, 0.0)
        if form.objective is not None:
            held = self.population.holds[rows][:, np.maximum(form.objective, 0)]
            found = np.where(held | (form.objective < 0), found, 0.0)
        return found if form.roots is None else found**form.roots

    def _with_stakes(self, lengths: Lengths, stakes: Lengths) -> Lengths:
        """The lengths, and those over all objectives once more, divided by what the client's own count together.

        Who has next to no stake has negative ones: they make no median (`guard.medians`), and are compared, too.
        """
        assert self._omega is not None
        count, found = lengths.shape[1], lengths.take(self.form.doubled, 1)
        stake = stakes @ self._omega
        some = stake > self._least
        if not some.all():
            found[np.ix_(~some, self.form.whole)] *= -1.0
            stake = np.where(some, stake, max(self._least, np.finfo(float).tiny))
        found[:, count:] /= stake[:, None]
        return found

    def _wrong_values(self, stack: Stack) -> dict[int, str]:
        """Who sends what is not finite, or too long to be squared."""
        bad: dict[int, str] = {}
        names = [n for n in self.form.first if stack[n].is_floating_point()]
        for name in (n for n in names if n not in self.form.rooms or not all_finite(stack[n])):
            a = stack[name]
            for i, client in enumerate(stack.clients):
                if not all_finite(a[i]):
                    bad[client] = f"{name!r} holds NaN or infinity"
                elif (length := float(a[i].double().norm())) > (limit := self.form.limits[name]):
                    why = f"above {limit:.0e} the server's sums could overflow"
                    bad[client] = f"{name!r} has the length {length:.2g}; {why} (guard = 'off' lets it in)"
        return bad

    def _wrong_entries(self, stack: Stack, table: Lengths, low: Bounds, high: Bounds) -> dict[int, str]:
        """Who counts itself negatively or as more than it has, or sends what no honest client could."""
        bad: dict[int, str] = {}
        for columns, s in sorted(self.form.columns, key=lambda one: one[0].kind != "weight"):
            own = table[:, s]
            outside = ~((own >= np.broadcast_to(low, table.shape)[:, s]) & (own <= high[:, s]))
            stated = columns.see(stack, self._asked).tolist() if outside.any() else []
            for i, k in np.argwhere(outside).tolist():
                at = s.start + k
                why = self._why(columns, k, stated[i][k], np.broadcast_to(low, table.shape)[i, at], high[i, at])
                if why and stack.clients[i] not in bad:
                    bad[stack.clients[i]] = why
        return bad

    def _why(self, columns: Columns, k: int, found: float, low: float, high: float) -> str:
        """What is wrong with an entry, in words; nothing where the guard is off and lengths overflow."""
        name, f = columns.name, self.fields[columns.name]
        upto = f" to {high:.6g}" if math.isfinite(high) and high < self.form.limit else ""
        if columns.kind == "weight":
            if f.exact and self.form.strict:
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
        return f"{name!r} has the length {found:.2g}; it should be at most {high:.0e}" if self.form.strict else ""

    def _objective_of(self, columns: Columns, k: int) -> str:
        return self.population.names[self.facts.objective[k] if columns.kind == "sums" else k]

    def _wrong_grams(self, clients: list[int], table: Lengths) -> dict[int, str]:
        """Whose matrices are no products of a matrix with itself, up to rounding."""
        bad: dict[int, str] = {}
        for columns, s in self.form.grams:
            M = math.isqrt(columns.width)
            sound = _are_grams(np.nan_to_num(table[:, s].reshape(-1, M, M), nan=0.0, posinf=0.0, neginf=0.0))
            why = f"{columns.name!r} should be symmetric and positive semi-definite"
            bad |= {client: why for client, fine in zip(clients, sound.tolist(), strict=True) if not fine}
        return bad

    def _beyond(self, clients: list[int], lengths: Lengths, per: Any) -> dict[int, str]:
        """Who sends a quotient that is too long to be squared."""
        some, limit = np.flatnonzero(per >= 0), self.form.limit
        far = lengths[:, some] > limit
        if not far.any():
            return {}
        return {
            clients[i]: f"{self.labels[some[k]]} is {lengths[i, some[k]]:.2g}; it should be at most {limit:.0e}"
            for i, k in np.argwhere(far).tolist()
        }

    def _wrong_tallies(self, stack: Stack) -> dict[int, str]:
        """Who counts fewer than no rows, or more than it says there are: in one entry, or in all of a metric's."""
        bad: dict[int, str] = {}
        for name in self.form.tallies:
            upto = self.fields[name].upto
            heard = stack[upto].double() * self.form.rooms[upto]
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
    if len(stack.clients) and stack.arrays.keys() != schema.keys():
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
