"""Min-norm weights: time and accuracy against the measurements we build on (10 seconds, one core).

    OMP_NUM_THREADS=1 python benchmarks/weights.py

Near-antipodal gradients, lengths spread 100 times, from a tenth to a ten-thousandth apart. Expected: within twice
DAQP's time at M = 5, 40 and 100, which was 8 us, 30-80 us and 0.3-0.8 ms, and a gap of at most 1e-6. The gap is
`w^T G w - min_k (G w)_k` over the trace of G; per objective, it is the largest `w^T G w - (G w)_k` over
`||g_k|| sum_j w_j ||g_j||`, so that the shortest gradient counts as much as the longest.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import daqp
import numpy as np

from polyfed.weights import frank_wolfe_gap, min_norm, pgd
from polyfed.weights.gram import Array

SIZES = (2, 5, 40, 100, 1000)
TWICE_DAQP = {5: 16e-6, 40: 160e-6, 100: 1.6e-3}
APART = (1e-1, 1e-2, 1e-3, 1e-4)
GAP = 1e-6


def near_antipodal(size: int, apart: float, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(2 * size + 8)
    sides = np.where(np.arange(size) % 2, 1.0, -1.0)[:, None]
    J = sides * common + apart * rng.standard_normal((size, len(common)))
    J *= 100.0 ** rng.uniform(0.0, 1.0, (size, 1))
    return J @ J.T


def plain_daqp(gram: Array) -> Array:
    """What the measured table times: the program as it is written, scaled by the trace, with nothing checked."""
    size = len(gram)
    lower, upper, sense = np.zeros(size + 1), np.ones(size + 1), np.zeros(size + 1, dtype=np.int32)
    lower[-1], sense[-1] = 1.0, 5
    return np.asarray(daqp.solve(gram / np.trace(gram), lower[:-1], np.ones((1, size)), upper, lower, sense)[0])


def cold_pgd(gram: Array) -> Array:
    return pgd(gram, np.full(len(gram), 1.0 / len(gram)))


def seconds(weigh: Callable[[Array], Array], gram: Array) -> float:
    timer = timeit.Timer(lambda: weigh(gram))
    once = timer.timeit(1)
    loops = max(1, min(1000, int(0.005 / once)))
    return min(timer.repeat(3 if once < 0.1 else 1, loops)) / loops


def per_objective(gram: Array, w: Array) -> float:
    norms = np.sqrt(np.diag(gram))
    return float(((w @ gram @ w - gram @ w) / (norms * (norms @ w))).max())


def shown(time: float) -> str:
    return f"{1e6 * time:.0f} us" if time < 1e-3 else f"{1e3 * time:.1f} ms"


def row(name: str, weigh: Callable[[Array], Array], sizes: tuple[int, ...]) -> tuple[dict[int, float], float]:
    """Prints a line of the table; the median times, and the worst gap."""
    times, worst, strict = {}, 0.0, 0.0
    for size in sizes:
        draws = [near_antipodal(size, apart, seed) for seed in range(5 if size <= 100 else 1) for apart in APART]
        times[size] = float(np.median([seconds(weigh, gram) for gram in draws]))
        for gram in draws:
            w = weigh(gram)
            worst = max(worst, frank_wolfe_gap(gram, w) / np.trace(gram))
            strict = max(strict, per_objective(gram, w))
    cells = [shown(times[size]) if size in times else "-" for size in SIZES]
    print(f"| {name} | {' | '.join(cells)} | {worst:.0e} | {strict:.0e} |", flush=True)
    return times, worst


def main() -> None:
    print("| solver | " + " | ".join(f"M = {size}" for size in SIZES) + " | worst relative gap | per objective |")
    print("|---" * (len(SIZES) + 3) + "|")
    times, gap = row("polyfed min_norm", min_norm, SIZES)
    row("DAQP, plain", plain_daqp, SIZES[:-1])
    row("PGD, 1000 steps of 1e-3, cold", cold_pgd, SIZES[1:3])
    kept = gap <= GAP and all(times[size] <= limit for size, limit in TWICE_DAQP.items())
    print(f"\nWithin twice DAQP's times and a gap of {GAP:.0e}: {'yes' if kept else 'NO'}.")


if __name__ == "__main__":
    main()
