"""Whether a reply is what was asked for: its names, shapes and types, finite numbers, and weights that the server can
believe. Nothing else is let in."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polyfed.core.client import all_finite
from polyfed.core.guard import LIMIT, Lengths
from polyfed.core.schema import Field, Fields, Schema

if TYPE_CHECKING:
    from polyfed.core.fleet import Population, Stack

NO_STAKE = 1e-6  # of all weight: what objectives that count for nothing may add up to
COMPARED = ("update", "gradient")  # the roles whose lengths the guard looks at


class Expected:
    """What the server knows of the replies to a request before any has come.

    All that is asked of a stack is one table, fetched at once (asking a GPU takes longer than finding it): a row for
    each client, and columns for weights as they are and for the lengths of everything else. Lengths are not finite
    where an array is not.

    Args:
        schema: shapes and types.
        fields: what each array means, as it travels.
        most: from a client's number of examples to the most that it may count in a mean.
        population: what is known of the clients.
        weighed: whether replies come multiplied by their weights.
        limit: the length that nothing may have; infinite where the guard is off.
        omega: the objectives' weights in what clients descend, where they hold different ones: a client whose
            objectives count little honestly sends little, so that lengths are divided by what its own count together.
    """

    def __init__(
        self,
        schema: Schema,
        fields: Fields,
        most: Callable[[int], float],
        population: Population,
        weighed: bool = False,
        limit: float = LIMIT,
        omega: Lengths | None = None,
    ) -> None:
        self.schema, self.fields, self.population, self.weighed, self.limit = schema, fields, population, weighed, limit
        self._most = cache(most)
        self._columns: dict[str, slice] = {}
        self._places = [name for name in schema if fields[name].below]
        self._tallies = [name for name in schema if fields[name].upto]
        at = 0
        for name, (shape, dtype) in schema.items():
            if dtype.is_floating_point and 0 not in shape:
                f = fields[name]
                width = math.prod(map(int, shape)) if f.role == "weight" else shape[0] if _by_objective(f) else 1
                self._columns[name] = slice(at, at + width)
                at += width
        self._bounds = np.full(at, limit if math.isfinite(limit) else np.finfo(np.float64).max)
        weights = [name for name in self._columns if fields[name].role == "weight"]
        self._weights = {n: 1 + 4 * torch.finfo(schema[n][1]).eps for n in weights}  # n as the client's type rounds it
        self.compared = [n for n in self._columns if fields[n].role in COMPARED and fields[n].alike]
        self.labels = [label for name in self.compared for label in self._labels(name)]
        count = len(self.labels)
        about = [fields[n] for n in self.compared for _ in range(self._columns[n].stop - self._columns[n].start)]
        self._roots = np.array([f.power for f in about])
        self._omega = omega
        self._whole = np.array([not f.per and not _by_objective(f) for f in about], dtype=bool)  # over all objectives
        # Under omega a length counts as it is and per stake: long gradients get small weights, so that either alone
        # would drop honest clients. Far is who is far in both.
        twins = np.flatnonzero(self._whole).tolist() if omega is not None else []
        self.twins = [(i, count + k) for k, i in enumerate(twins)]
        self.labels += [self.labels[i] for i in twins]
        self._by = np.array([fields[f.by].power if f.by and not f.per else 0 for f in about])

    def _labels(self, name: str) -> list[str]:
        what = f"its {self.fields[name].role} {name!r}"
        return [f"{what} for {s!r}" for s in self.population.names] if _by_objective(self.fields[name]) else [what]

    def validated(self, stack: Stack) -> tuple[Stack, Lengths]:
        """The stack without replies that are not what was asked for, which are named; and the lengths of the rest."""
        if bad := unlike(stack, self.schema):
            stack = stack.drop(bad)
        if not len(stack.clients):
            return stack, np.zeros((0, len(self.labels)))
        most = self._counts(stack)  # all that is known first: a GPU may still be at work
        bounds, units = self._bounded(stack, most), self._units(most)
        table = self._table(stack)
        bad = self._wrong_places(stack) if self._places else {}
        bad |= self._wrong_tallies(stack) if self._tallies else {}
        if not ((table >= 0) & (table <= bounds)).all():  # NaN is neither
            bad |= {**self._wrong_values(stack), **self._wrong_weights(stack, table, bounds)}
        lengths = self._lengths(table, units)
        if self.twins:
            lengths = self._with_stakes(lengths, list(stack.clients))
        if not bad:
            return stack, lengths
        return stack.drop(bad), lengths[[client not in bad for client in stack.clients]]

    def _table(self, stack: Stack) -> Lengths:
        some = [_norms(stack[n], self.fields[n]) if n not in self._weights else stack[n].reshape(len(stack.clients), -1)
                for n in self._columns]  # fmt: skip
        if not some:
            return np.zeros((len(stack.clients), 0))
        found: Lengths = torch.cat(some, 1).numpy(force=True).astype(np.float64)
        for name in self._weights:
            if self.fields[name].whole:  # what is not whole is out of bounds
                own = found[:, self._columns[name]]
                own[own != np.round(own)] = np.nan
        return found

    def _counts(self, stack: Stack) -> Lengths:
        """What each client counts, as a column."""
        examples = self.population.examples[list(stack.clients)].tolist()
        return np.array([self._most(n) for n in examples], dtype=np.float64).reshape(-1, 1)

    def _bounded(self, stack: Stack, most: Lengths) -> Lengths:
        """The most that each entry of the table may be."""
        bounds = self._bounds[None].repeat(len(most), 0)
        for name, room in self._weights.items():
            f = self.fields[name]
            own = most**f.power * room
            if _by_objective(f):
                own = np.where(self.population.holds[list(stack.clients)], own, 0.0)  # `own` may be infinite
            bounds[:, self._columns[name]] = own
        return bounds

    def _units(self, most: Lengths) -> Lengths | None:
        """What lengths are divided by: the weight that the server knows, where clients have multiplied by it."""
        return np.asarray(most**self._by) if self.weighed and self._by.any() and (most != 1).any() else None

    def _lengths(self, table: Lengths, units: Lengths | None) -> Lengths:
        """Per unit, and of products of gradients their root."""
        columns = []
        for name in self.compared:
            f, own = self.fields[name], table[:, self._columns[name]]
            if f.per:
                own = own / np.maximum(table[:, self._columns[f.per]], 1e-30)
            columns.append(own)
        found = columns[0] if len(columns) == 1 else np.concatenate([np.zeros((len(table), 0)), *columns], axis=1)
        found = found if units is None else found / units
        return found ** (1 / self._roots) if (self._roots != 1).any() else found

    def _with_stakes(self, lengths: Lengths, clients: list[int]) -> Lengths:
        """The lengths, and those over all objectives once more, divided by what the client's own count together.

        Who has next to no stake has negative ones: they make no median (`guard.medians`), and are compared, too.
        """
        assert self._omega is not None
        stake, least = self.population.holds[clients] @ self._omega, NO_STAKE * self._omega.sum()
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
        for name in (n for n in self._columns if n not in self._weights or not all_finite(stack[n])):
            a = stack[name]
            for i, client in enumerate(stack.clients):
                if not all_finite(a[i]):
                    bad[client] = f"{name!r} holds NaN or infinity"
                elif (length := float(a[i].double().norm())) > self.limit:
                    why = f"above {self.limit:.0e} the server's sums could overflow"
                    bad[client] = f"{name!r} has the length {length:.2g}; {why} (guard = 'off' lets it in)"
        return bad

    def _wrong_weights(self, stack: Stack, table: Lengths, bounds: Lengths) -> dict[int, str]:
        """Who counts itself negatively, as more than it has, or for what it does not hold."""
        bad: dict[int, str] = {}
        for name in self._weights:
            at = self._columns[name]
            stated = stack[name].reshape(len(table), -1).tolist()
            for i, k in np.argwhere(~((table[:, at] >= 0) & (table[:, at] <= bounds[:, at]))).tolist():
                kind = "a whole number from 0" if self.fields[name].whole else "from 0"
                top = bounds[i, at.start + k]
                upto = f" to {top:.6g}" if math.isfinite(top) else ""
                bad[stack.clients[i]] = f"its weight {name!r} is {stated[i][k]:.6g}; it should be {kind}{upto}"
        return bad

    def _wrong_places(self, stack: Stack) -> dict[int, str]:
        """Who names a place that is not there."""
        bad: dict[int, str] = {}
        for name in self._places:
            rows, below = stack[name].reshape(len(stack.clients), -1), self.fields[name].below
            wrong = ((rows < 0) | (rows >= below)).any(1).tolist()
            bad |= {c: f"{name!r} should hold numbers from 0 to below {below}"
                    for c, w in zip(stack.clients, wrong, strict=True) if w}  # fmt: skip
        return bad

    def _wrong_tallies(self, stack: Stack) -> dict[int, str]:
        """Who counts fewer than no rows, or more than it says there are."""
        bad: dict[int, str] = {}
        for name in self._tallies:
            rows, n = stack[name].reshape(len(stack.clients), -1), stack[self.fields[name].upto].unsqueeze(1)
            wrong = ((rows < 0) | (rows > n)).any(1).tolist()
            bad |= {c: f"{name!r} should hold whole numbers from 0 to its number of rows"
                    for c, w in zip(stack.clients, wrong, strict=True) if w}  # fmt: skip
        return bad


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


def _by_objective(f: Field) -> bool:
    return f.axes.split()[:1] == ["M"]


def _norms(a: Tensor, f: Field) -> Tensor:
    """A length for each client, or for each client and objective."""
    if a.dim() == 1:
        return a.abs().unsqueeze(1)
    rows = a.reshape(len(a), a.shape[1] if _by_objective(f) else 1, -1)
    found: Tensor = torch.linalg.vector_norm(rows, dim=2, dtype=torch.float32 if a.dtype == torch.float16 else None)
    return found
