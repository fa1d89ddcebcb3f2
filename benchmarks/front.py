"""How near `polyfed front` comes to fronts that are known, with every default: python benchmarks/front.py

For VLMOP1 and two quadratics with minimum 0: the hypervolume of 11 points as a part of that of 11 ideal ones, which are
(a) the exact points of the same preferences, (b) the exact points of equally spaced preferences, (c) exact points where
hypervolume is largest; the largest distance of a loss from (a); seconds. Scalarisations by the same measures (c).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from scipy.optimize import brentq

import polyfed
from polyfed.metrics import hypervolume

Curve = Callable[[float], tuple[float, float]]


def bells(s: float) -> tuple[float, float]:
    """VLMOP1's front, for s from -1 to 1."""
    return float(1 - np.exp(-((1 - s) ** 2))), float(1 - np.exp(-((1 + s) ** 2)))


def parabolas(s: float) -> tuple[float, float]:
    """The front of two paraboloids, for s from 0 to 1."""
    return (1 - s) ** 2, s**2


PROBLEMS: dict[str, tuple[Curve, float, int]] = {"vlmop1": (bells, -1.0, 4), "paraboloids": (parabolas, 0.0, 2)}


def preferred(curve: Curve, low: float, r: tuple[float, float]) -> tuple[float, float]:
    """The point of a front where r_1 F_1 = r_2 F_2."""
    if 0.0 in r:
        return curve(1.0 if r[1] == 0.0 else low)
    return curve(brentq(lambda s: r[0] * curve(s)[0] - r[1] * curve(s)[1], low, 1.0))


def best_placed(curve: Curve, low: float, count: int, reference: list[float]) -> float:
    """The largest hypervolume that so many points of a front have, by moving one after the other."""
    places: NDArray[np.float64] = np.linspace(low, 1.0, count)

    def volume(some: NDArray[np.float64]) -> float:
        return hypervolume([curve(s) for s in some], reference)

    for _ in range(30):
        for k in range(count):
            ends = places[k - 1] if k else low, places[k + 1] if k < count - 1 else 1.0
            places = max([places, *(np.r_[places[:k], s, places[k + 1 :]] for s in np.linspace(*ends, 41))], key=volume)
    return volume(places)


def experiment(name: str, folder: Path, dim: int, args: argparse.Namespace) -> dict[str, Any]:
    """A known problem, begun away from its front; the method's settings are the defaults."""
    far = np.random.default_rng(args.seed).normal(size=dim) * 0.6
    save_file({"w": torch.from_numpy(far).float()}, folder / "start.safetensors")
    data = {"name": name, "examples": 4, "clients": 4} | ({"dim": dim} if name == "vlmop1" else {})
    model = {"name": "point", "weights": str(folder / "start.safetensors")}
    method = {"name": "fedcmoo"} | ({} if args.lr is None else {"lr": args.lr})
    rounds = {} if args.rounds is None else {"rounds": args.rounds}
    return {"name": name, **rounds, "cohort": "all", "evaluate": {"every": 10**6}, "data": data, "model": model,
            "algorithm": method}  # fmt: skip


def measure(name: str, args: argparse.Namespace) -> str:
    """A line of the table."""
    curve, low, dim = PROBLEMS[name]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        keys = experiment(name, Path(folder), dim, args)
        front = polyfed.front(keys, points=args.points, method="both", out=Path(folder) / "front")
        seconds = time.perf_counter() - begun
    ends = np.array([curve(low), curve(1.0)])
    reference = (ends.max(0) + 0.1 * np.ptp(ends, axis=0)).tolist()
    kinds = {kind: [point for point in front.points if point.kind == kind] for kind in front.about["by_kind"]}
    volume = {k: hypervolume([list(p.losses.values()) for p in some], reference) for k, some in kinds.items()}
    points = kinds["preference"]
    same = [preferred(curve, low, (p.preference["f1"], p.preference["f2"])) for p in points]
    even = [preferred(curve, low, (r, 1 - r)) for r in np.linspace(0, 1, len(points)).tolist()]
    off = max(float(np.abs(np.array([*p.losses.values()]) - s).max()) for p, s in zip(points, same, strict=True))
    best = best_placed(curve, low, len(points), reference)
    ideal = [hypervolume(same, reference), hypervolume(even, reference), best]
    parts = " ".join(f"{100 * volume['preference'] / one:8.2f}" for one in ideal)
    return f"{name:12} {parts} {off:8.4f} {100 * volume['scalarisation'] / best:8.2f} {seconds:8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=None, help="of the first point; the others have half")
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--seed", type=int, default=1, help="of the start")
    args = parser.parse_args()
    print(f"{'hypervolume, %':12} {'(a)':>6} {'(b)':>8} {'(c)':>8} {'off':>8} {'sums (c)':>8} {'seconds':>8}")
    for name in PROBLEMS:
        print(measure(name, args), flush=True)


if __name__ == "__main__":
    main()
