"""Many models: the paper's Figures 1-5 and gain tables in kind, spread over seeds, and what a round costs.

    python benchmarks/many_models.py                    the testbed's figures over 20 seeds and the overhead, 6 minutes
    python benchmarks/many_models.py --figures figures  also draws Figures 1-5 there (needs matplotlib)
    python benchmarks/many_models.py data               gain on Synthetic(1,1)-A and -B, the attributes, the mixed run

Bhuyan, Moharir, Joshi, "Multi-Model Federated Learning with Provable Guarantees", 2022, Sections 6 and 7. The testbed's
runs over many seeds are computed in the short form of testbed.py, which is checked against the library first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import testbed
from polyfed import FedAvg, Federation, MultiModel, Objective, Problem
from polyfed.algorithms.base import InverseDecay
from polyfed.algorithms.models.multimodel import MultiModelRound
from polyfed.core.clock import Clock
from polyfed.core.door import Door, PartView
from polyfed.core.fleet import Metered
from polyfed.core.layer import Layers
from polyfed.core.part import Part
from polyfed.engines.local import Local
from polyfed.run.loop import open_doors
from polyfed.run.plan import Plan

NAMES = ("mfa-rand", "mfa-rr")
RATES = {"constant": testbed.constant, "decaying": testbed.decaying}
KNOWN_SPREAD = {"constant": (0.061, 0.0054), "decaying": (0.063, 0.0029)}  # Rand, RR (methods.md, section 3)
ROOT = Path(__file__).parents[1]


def spread(seeds: int, rounds: int, figures: Path | None) -> None:
    """Figures 1-4: mean and standard deviation over seeds of the log gap of one model."""
    print(f"log10 gap of one model after {rounds} rounds, E = 5, over {seeds} seeds: mean, standard deviation")
    for number, (M, kind) in enumerate([(2, "constant"), (2, "decaying"), (12, "constant"), (12, "decaying")], 1):
        gaps = {
            name: np.log10([testbed.excess(name, M, rounds, RATES[kind], 5, seed)[:, 0] for seed in range(seeds)])
            for name in NAMES
        }
        ends = {name: (g[:, -1].mean(), g[:, -1].std()) for name, g in gaps.items()}
        known = f"  (known {KNOWN_SPREAD[kind][0]}, {KNOWN_SPREAD[kind][1]})" if M == 12 else ""
        said = "   ".join(f"{name} {mean:.4f} {std:.4f}" for name, (mean, std) in ends.items())
        print(f"  figure {number}: M = {M:2}, {kind:8} step   {said}{known}", flush=True)
        if figures:
            draw_gaps(figures / f"figure-{number}.png", f"M = {M}, {kind} learning rate", gaps)


def gain(seeds: int, figures: Path | None, gap: float = -2.5) -> None:
    """Figure 5: M T_1 / T_M at a gap, for E = 1, 5, 10."""
    models = (1, 2, 4, 8, 12)
    print(f"gain at log10 gap {gap}, constant step, over {seeds} seeds: mean and standard deviation for M = {models}")
    rows: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for E in (1, 5, 10):
        alone = testbed.rounds_to("mfa-rr", 1, testbed.constant, E, 0, gap)
        for name in NAMES:
            for M in models:
                needed = [testbed.rounds_to(name, M, testbed.constant, E, s, gap) for s in range(seeds if M > 1 else 1)]
                gains = [M * alone / t for t in needed]
                rows.setdefault((name, E), []).append((float(np.mean(gains)), float(np.std(gains))))
            said = "  ".join(f"{mean:5.2f} +- {std:.2f}" for mean, std in rows[name, E])
            print(f"  {name:8} E = {E:2} (T_1 = {alone:3})  {said}", flush=True)
    if figures:
        draw_gain(figures / "figure-5.png", models, rows)


def rate(frames: int = 1000) -> None:
    """Theorem 2: the slope of log distance over log time for MFA-RR with a decaying step."""
    shape, gamma, M = (6, 1, 0.5), 20.0, 2
    decay = InverseDecay(beta=4.0, gamma=gamma, every=M)
    for name in NAMES:
        found = testbed.excess(name, M, M * frames, lambda t: decay.value(t, M), 5, 0, shape=shape)[M - 1 :: M].mean(1)
        late = np.arange(frames // 4, frames)
        slope = np.polyfit(np.log(late + 1 + gamma), np.log(found[late]) / 2, 1)[0]
        print(f"slope of log |w - w*| over log t, mu = 0.5, {frames} frames, {name}: {slope:.3f}", flush=True)


# -- what a round costs


def network() -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return Problem(model, [Objective("digit", "cross-entropy")])


def overhead(M: int, workers: int, times: int, clients: int = 24) -> None:
    """A round of M models against M single-model rounds of as many clients each, taken in turns."""
    x, y = torch.rand(clients * 200, 64), torch.randint(0, 10, (clients * 200,))
    federation = Federation.from_arrays(x, {"digit": y}, clients=clients)
    method = FedAvg(lr=0.1, local_steps=10, batch_size=32)
    many = MultiModel({f"m{j}": (network(), method) for j in range(M)})
    parts = {name: Part(problem, federation, method) for name, (problem, _) in many.models.items()}
    start = {name: method.init(part.problem) for name, part in parts.items()}
    apart = Local(parts, Layers(), workers=workers)
    alone = {name: single_door(apart, name, clients // M) for name in parts}
    plan = Plan(
        name="cost", title=many.name, engine_name="local", parts=parts, engine=partial(Local, workers=workers),
        rounds=1, seed=0, cohort=clients, schedule=many,
    )  # fmt: skip
    engine = plan.engine(plan.parts, plan.layers)
    doors, pool = open_doors(plan, engine, Metered(engine))
    assert pool is not None
    together = MultiModelRound(plan.methods(), doors, pool)

    def singles(t: int) -> None:
        for name, door in alone.items():
            door.begin(t)
            method.round(t, start[name], door)

    def all_at_once(t: int) -> None:
        for door in doors.values():
            door.begin(t)
        together(t, start)

    one, other = alternate(singles, all_at_once, times)
    together.close()
    engine.close()
    apart.close()
    print(
        f"M = {M:2}, {workers} worker{'s' * (workers > 1)}: {M} single-model rounds {1e3 * one:6.1f} ms, "
        f"one of {M} models {1e3 * other:6.1f} ms, ratio {other / one:.3f} (at most 1.05)",
        flush=True,
    )


def single_door(engine: Local, name: str, cohort: int) -> Door:
    """A door to one model's clients, whose cohort is drawn for it alone."""
    view = PartView(Metered(engine), name, engine.population[name], Clock(0))
    return Door(view, engine.parts[name].problem, cohort=cohort)


def alternate(one: Callable[[int], None], other: Callable[[int], None], times: int) -> tuple[float, float]:
    """Lower quartiles of the seconds each takes, in turns: another process's load falls on both."""
    seconds: list[list[float]] = [[], []]
    for t in range(1, times + 2):
        for run, kept in zip((one, other), seconds, strict=True):
            start = time.perf_counter()
            run(t)
            kept.append(time.perf_counter() - start)
    a, b = (statistics.quantiles(kept[1:], n=4)[0] for kept in seconds)
    return a, b


# -- real data


def on_data(seeds: int) -> None:
    """Section 7 in kind: `polyfed gain` on experiments/many-models; POLYFED_DATA says where the data is."""
    from polyfed.cli.gain import gain as command

    plans = {"synthetic-a": "1,2,4,8", "synthetic-b": "1,2,4,8", "attributes": "9", "mixed": "2"}
    for name, models in plans.items():
        print(name, flush=True)
        path = ROOT / "experiments" / "many-models" / f"{name}.toml"
        command(str(path), models, seeds=seeds)


# -- figures


def draw_gaps(path: Path, title: str, gaps: dict[str, np.ndarray]) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for name, g in gaps.items():
        axes[0].plot(np.arange(1, g.shape[1] + 1), g.mean(0), label=name)
        axes[1].plot(np.arange(1, g.shape[1] + 1), g.std(0), label=name)
    for axis, label in zip(axes, ("mean of the log gap", "its standard deviation"), strict=True):
        axis.set(xlabel="round", ylabel=label)
        axis.legend()
    finish(figure, path, title)


def draw_gain(path: Path, models: tuple[int, ...], rows: dict[tuple[str, int], list[tuple[float, float]]]) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, name in zip(axes, NAMES, strict=True):
        for (of, E), row in rows.items():
            if of == name:
                axis.errorbar(models, [g for g, _ in row], [s for _, s in row], marker="o", label=f"E = {E}")
        axis.set(xlabel="M", ylabel="gain", title=name)
        axis.legend()
    finish(figure, path, "gain over M")


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def finish(figure: Any, path: Path, title: str) -> None:
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot().close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="check, spread, gain, rate, cost, data; default: all but data")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--figures", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures = given.figures.resolve() if given.figures else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for what in given.what or ("check", "spread", "gain", "rate", "cost"):
            if what == "check":
                worst = max(testbed.check(name, M, 20, 3) for name in NAMES for M in (1, 5, 12))
                print(f"short form against the library, 20 rounds: log gaps differ by at most {worst:.1e}", flush=True)
            elif what == "cost":
                for M, workers in ((4, 1), (12, 1), (4, 2), (12, 2)):
                    overhead(M, workers, given.times)
            elif what in ("spread", "gain", "rate", "data"):
                parts: dict[str, Callable[[], object]] = {
                    "spread": lambda: spread(given.seeds, given.rounds, figures), "rate": rate,
                    "gain": lambda: gain(given.seeds, figures), "data": lambda: on_data(min(given.seeds, 3)),
                }  # fmt: skip
                parts[what]()
            else:
                sys.exit(f"unknown part {what!r}")


if __name__ == "__main__":
    main()
