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
ACCURATE = 1e-9  # a residual that ends the search
MANY = 100  # variables up to which DAQP is the faster one


class Program(NamedTuple):
    """`min y^T C y / 2 + f^T y` over `lower <= (y, A y) <= upper`, with equality in the rows of A.

    C: n x n; A: 0 or 1 rows. Whoever states it scales it, since tolerances are absolute: entries of C and A at most
    about 1, and y of order 1.
    """

    C: Array
    f: Array
    A: Array
    lower: Array
    upper: Array


Solver: TypeAlias = Callable[[Program], tuple[Array, Array]]  # to y within its bounds, and the multipliers nu of A y


def solve(program: Program, solvers: Sequence[Solver] = ()) -> Array:
    """The first accurate answer of the solvers, else the best of them.

    DAQP goes first up to 100 variables, PIQP above. Neither is believed: `kkt` judges what they answer.
    """
    best, least = program.lower[: len(program.C)], np.inf
    for solver in solvers or _order(len(program.C)):
        y, nu = solver(program)
        residual = kkt(program, y, nu)
        if residual < least:
            best, least = y, residual
        if residual <= ACCURATE:
            break
    return best


def kkt(program: Program, y: Array, nu: Array) -> float:
    """By how much y, within its bounds, misses optimality, relative to the size of y.

    With the slopes `z = C y + f + A^T nu`: the sum of `z_k (y_k - lower_k)` where z_k > 0 and of
    `-z_k min(upper_k - y_k, 1)` where z_k < 0 (the 1 stands for a bound far away), that is the duality gap, over
    `max(1, sum_k |y_k|)^2`; and by how much A y misses.
    """
    C, f, A, lower, upper = program
    n = len(C)
    z = C @ y + f + nu @ A
    gap = np.maximum(z, 0.0) @ (y - lower[:n]) + np.maximum(-z, 0.0) @ np.minimum(upper[:n] - y, 1.0)
    return float(gap / max(1.0, np.abs(y).sum()) ** 2 + np.abs(A @ y - upper[n:]).sum())


def on_simplex(C: Array, t: Array) -> Array | None:
    """`min y^T C y` over `y >= 0, t^T y = 1` at the least cost; None unless C is definite.

    Without its proximal steps DAQP refuses a C that is not definite, and is exact where it is: over 13,000 Gram
    matrices of the kinds in our tests no residual was above 1e-13. So this answer is not checked.
    """
    lower, upper = _simplex(len(C))
    y, _, status, _ = daqp.solve(
        C, lower[:-1], t[None], upper, lower, _sense(len(C), 1), eps_prox=0.0, primal_tol=1e-12, dual_tol=1e-14
    )
    return np.maximum(y, lower[:-1]) if status == 1 else None


def solve_daqp(program: Program) -> tuple[Array, Array]:
    """DAQP (Arnström, Bemporad and Axehill 2022): dual active set, exact to rounding; proximal where C is singular."""
    C, f, A, lower, upper = program
    y, _, _, info = daqp.solve(
        C, f, A, upper, lower, _sense(len(C), len(A)), primal_tol=1e-12, dual_tol=1e-14, eta_prox=1e-14, iter_limit=1000
    )
    return np.clip(y, lower[: len(C)], upper[: len(C)]), info["lam"][len(C) :]


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
    return np.clip(solver.result.x, lower[:n], upper[:n]), np.array(solver.result.y)


def _order(size: int) -> tuple[Solver, Solver]:
    return (solve_daqp, solve_piqp) if size <= MANY else (solve_piqp, solve_daqp)


@cache
def _sense(variables: int, equalities: int) -> npt.NDArray[np.int32]:
    return np.array([0] * variables + [5] * equalities, dtype=np.int32)  # 5 is DAQP's word for equality


@cache
def _simplex(size: int) -> tuple[Array, Array]:
    return np.append(np.zeros(size), 1.0), np.append(np.full(size, FREE), 1.0)
