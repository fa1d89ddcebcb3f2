"""Objective subsets: which clients have data for which objectives, the 0/1 matrix A (clients x objectives) of FMOL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.errors import BadInput

Chance = Annotated[float, Field(gt=0, le=1)]
Holds = Literal["all", "one-each"] | Chance | list[list[Literal[0, 1]]]
Matrix = NDArray[np.bool_]


def draw_holds(
    holds: Holds, clients: int, objectives: Sequence[str], rng: np.random.Generator
) -> dict[str, NDArray[np.bool_]]:
    """By objective, which clients hold it; empty when everyone holds everything.

    holds: 'all'; 'one-each', every objective equally often up to one; the chance that a client holds an objective,
    at least one each; or the matrix itself, one row per client.
    """
    if holds == "all" or holds == 1:
        return {}
    if isinstance(holds, list):
        A = _given(holds, clients, objectives)
    elif holds == "one-each":
        A = _one_each(clients, len(objectives), rng)
    else:
        A = _by_chance(float(holds), clients, len(objectives), rng)
    return {name: np.ascontiguousarray(A[:, s]) for s, name in enumerate(objectives)}


def _one_each(clients: int, m: int, rng: np.random.Generator) -> Matrix:
    if clients < m:
        raise BadInput(f"data.holds = 'one-each' needs a client for each of the {m} objectives. Found {clients}.")
    return np.eye(m, dtype=bool)[rng.permutation(clients) % m]


def _by_chance(p: float, clients: int, m: int, rng: np.random.Generator) -> Matrix:
    """Independent draws; a client without an objective gets one at random, an objective without a client likewise."""
    A = rng.random((clients, m)) < p
    idle = np.flatnonzero(~A.any(1))
    A[idle, rng.integers(0, m, len(idle))] = True
    lonely = np.flatnonzero(~A.any(0))
    A[rng.integers(0, clients, len(lonely)), lonely] = True
    return A


def _given(rows: list[list[Literal[0, 1]]], clients: int, objectives: Sequence[str]) -> Matrix:
    m, widths = len(objectives), {len(row) for row in rows}
    if len(rows) != clients or widths != {m}:
        found = f"{len(rows)} rows of {' or '.join(map(str, sorted(widths))) or 'no'} entries"
        raise BadInput(f"data.holds should be {clients} rows (clients) of {m} entries (objectives). Found {found}.")
    A = np.array(rows, dtype=bool)
    idle, lonely = np.flatnonzero(~A.any(1)), np.flatnonzero(~A.any(0))
    if len(idle):
        raise BadInput(f"In data.holds each client should hold an objective; client {idle[0]} (from 0) holds none.")
    if len(lonely):
        raise BadInput(f"In data.holds each objective should have a client; {objectives[lonely[0]]!r} has none.")
    return A
