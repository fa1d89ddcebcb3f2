"""Small convex quadratic programs, and the solvers that take over from one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import daqp
import numpy as np
import numpy.typing as npt
import piqp

from polyfed.weights.gram import Array

FREE = 1e30  # what both solvers read as no bound
ACCURATE = 1e-9  # a KKT residual that ends the search
MANY = 100  # variables up to which DAQP is the faster one


class Program(NamedTuple):
    """`min y^T C y / 2 + f^T y` over `lower <= (y, A y) <= upper`, equality in the rows of A.

    C: n x n; A: 0 or 1 rows. Whoever states it scales it, since tolerances are absolute: entries of C and A at most
    about 1, and y of order 1.
    """

    C: Array
    f: Array
    A: Array
    lower: Array
    upper: Array


Solver: TypeAlias = Callable[[Program], tuple[Array, Array]]  # to y and the multipliers of A


def solve(program: Program, start: Array, solvers: Sequence[Solver] = ()) -> Array:
    """The first accurate answer, else the best one; `start`, a feasible point, when no solver gives any.

    DAQP goes first up to 100 variables, PIQP above. Neither is believed: the residual of its answer is computed here.
    """
    best, least = start, np.inf
    for solver in solvers or _order(len(start)):
        y, multipliers = solver(program)
        residual = kkt_residual(program, y, multipliers)
        if residual < least:
            best, least = y, residual
        if residual <= ACCURATE:
            break
    return best


def kkt_residual(program: Program, y: Array, multipliers: Array) -> float:
    """By how much y misses optimality, in the units of C and y.

    With `z = C y + f - A^T nu`, the largest of `z_k min(y_k - lower_k, 1)` and `-z_k min(upper_k - y_k, 1)`: up the
    slope only at a lower bound, down it only at an upper one.
    """
    z = program.C @ y + program.f - multipliers @ program.A
    below = z * np.minimum(y - program.lower[: len(y)], 1.0)
    above = z * np.minimum(program.upper[: len(y)] - y, 1.0)
    return float(np.maximum(below, -above).max())


def solve_daqp(program: Program) -> tuple[Array, Array]:
    """DAQP (Arnström, Bemporad and Axehill 2022): dual active set, exact to rounding; proximal where C is singular."""
    C, f, A, lower, upper = program
    sense = _sense(len(C), len(A))
    y, _, _, info = daqp.solve(C, f, A, upper, lower, sense, primal_tol=1e-12, dual_tol=1e-14, eta_prox=1e-14)
    return y, -info["lam"][len(C) :]


def solve_piqp(program: Program) -> tuple[Array, Array]:
    """PIQP (Schwan et al. 2023): proximal interior point, whose time hardly depends on how many weights are zero."""
    C, f, A, lower, upper = program
    n = len(C)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_duality_gap_abs = 1e-10
    solver.settings.eps_rel = solver.settings.eps_duality_gap_rel = 0.0
    solver.settings.max_iter = 50
    solver.setup(np.asfortranarray(C), f, np.asfortranarray(A), upper[n:], None, None, None, lower[:n], upper[:n])
    solver.solve()
    return np.array(solver.result.x), -np.array(solver.result.y)


def _order(size: int) -> tuple[Solver, Solver]:
    return (solve_daqp, solve_piqp) if size <= MANY else (solve_piqp, solve_daqp)


@cache
def _sense(variables: int, equalities: int) -> npt.NDArray[np.int32]:
    return np.array([0] * variables + [5] * equalities, dtype=np.int32)  # 5 is DAQP's word for equality
