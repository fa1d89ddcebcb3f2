"""Figures 1-3 of the MOCHA paper in kind: `POLYFED_DATA=... python benchmarks/mocha_figures.py [1 2 3] [--draw DIR]`.

Each figure is an experiment of `experiments/` and some changes to it; what is printed is the simulated time to come
within 10 %, 1 % and 0.1 % of the optimal primal value (relative sub-optimality), and what was reached in the end. The
optimum is taken to be MOCHA's own dual value at a relative duality gap of at most 1e-4: nothing is understated.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.experiment.building import plan
from polyfed.experiment.reading import override, read
from polyfed.run.directory import RunDirectory
from polyfed.run.loop import execute

ROOT = Path(__file__).parents[1] / "experiments"
LEVELS = (0.1, 0.01, 0.001)
Curve = tuple[np.ndarray, np.ndarray]  # simulated seconds and relative sub-optimality
Panels = dict[str, dict[str, Curve]]  # title -> label -> curve
METHODS = {
    "mocha": ["algorithm.steps={steps}"],
    "cocoa": ["algorithm.name=cocoa", "algorithm.steps=", "algorithm.theta={theta}"],
    "mb-sdca": ["algorithm.name=mb-sdca", "algorithm.steps=", "algorithm.batch_size={batch}", "algorithm.beta={beta}"],
    "mb-sgd": [
        "algorithm.name=mb-sgd", "algorithm.steps=", "algorithm.omega_every=", "algorithm.batch_size={batch}",
        "algorithm.lr={lr}",
    ],
}  # fmt: skip
TUNED: dict[str, list[dict[str, Any]]] = {
    "mocha": [{"steps": steps} for steps in (400, 4000, 20000)],
    "cocoa": [{"theta": theta} for theta in (0.5, 0.9)],
    "mb-sdca": [{"batch": 210, "beta": beta} for beta in (1, 2)],
    "mb-sgd": [{"batch": 210, "lr": lr} for lr in (1e-3, 3e-4)],
}


def history(figure: str, changes: list[str], rounds: int | None = None) -> list[dict[str, Any]]:
    name, settings = read(str(ROOT / f"mocha-{figure}.toml"))
    made, resolved = plan(name, override(settings, [*changes, *([f"rounds={rounds}"] if rounds else [])]))
    with tempfile.TemporaryDirectory() as folder:
        return execute(made, RunDirectory.create(Path(folder) / "run", name, {"name": name, **resolved})).history


def curve(lines: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Simulated seconds so far and the primal value, at every evaluation."""
    seconds = np.cumsum([line["simulated_seconds"] for line in lines])
    seen = [i for i, line in enumerate(lines) if "primal" in line]
    return seconds[seen], np.array([lines[i]["primal"] for i in seen])


def report(label: str, lines: list[dict[str, Any]], best: float) -> Curve:
    """Prints when each level is reached; the relative sub-optimality over simulated time."""
    seconds, primal = curve(lines)
    off = primal / best - 1
    times = [seconds[np.argmax(off <= level)] if (off <= level).any() else np.inf for level in LEVELS]
    text = "  ".join(f"{100 * level:g} % {t:7.1f} s" for level, t in zip(LEVELS, times, strict=True))
    print(f"  {label:34} {text}   last {100 * off[-1]:.3f} % at {seconds[-1]:.0f} s", flush=True)
    return seconds, off


def optimum() -> float:
    lines = history("figure1", ["algorithm.stop_gap=1e-4", "evaluate.every=20", "algorithm.steps=4000"], 2000)
    return float(lines[-1]["dual"])


def figure1(best: float) -> Panels:
    """Each method's best setting is drawn; all that were tried are printed."""
    panels: Panels = {}
    for network in ("wifi", "lte", "3g"):
        for method, changes in METHODS.items():
            tried = []
            for setting in TUNED[method]:
                filled = [change.format(**setting) for change in changes]
                label = f"{network} {method} {' '.join(f'{k}={v}' for k, v in setting.items())}"
                tried.append(report(label, history("figure1", [*filled, f"network.name={network}"], 100), best))
            panels.setdefault(network, {})[method] = min(tried, key=_quality)
    return panels


def _quality(found: Curve) -> tuple[float, float]:
    """When 1 % is reached, then how close it came."""
    seconds, off = found
    return (float(seconds[np.argmax(off <= 0.01)]) if (off <= 0.01).any() else np.inf), float(off[-1])


def figure2(best: float) -> Panels:
    panels: Panels = {}
    for variability in ("high", "low"):
        for method in ("mocha", "cocoa", "mb-sdca", "mb-sgd"):
            setting = {"steps": 210, "theta": 0.9, "batch": 210, "beta": 2, "lr": 3e-4}
            filled = [change.format(**setting) for change in METHODS[method]]
            lines = history("figure2", [*filled, f"faults.variability={variability}"])
            panels.setdefault(f"{variability} variability", {})[method] = report(f"{variability} {method}", lines, best)
    return panels


def figure3(best: float) -> Panels:
    found = {
        f"p = {drop}": report(f"drop {drop}", history("figure3", [f"faults.drop={drop}"]), best)
        for drop in (0.0, 0.25, 0.5, 0.75, 0.9)
    }
    silent = history("figure3", ["faults.drop=0.0", "faults.silent=[3]"])
    return {"dropped nodes": {**found, "one never answers": report("node 3 never answers", silent, best)}}


def draw(panels: Panels, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.4), sharey=True, squeeze=False)
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for label, (seconds, off) in curves.items():
            axis.loglog(seconds, np.maximum(off, 1e-5), label=label)
        axis.set(title=title, xlabel="simulated seconds")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("relative sub-optimality")
    axes[0][-1].legend(fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"  drawn: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--draw", type=Path, help="a folder for figure-1.png, ... (needs matplotlib)")
    asked = parser.parse_args()
    best = optimum()
    print(f"optimal primal value {best:.4f}")
    for number in asked.figures:
        print(f"Figure {number}")
        panels = {1: figure1, 2: figure2, 3: figure3}[number](best)
        if asked.draw:
            draw(panels, asked.draw / f"figure-{number}.png")


if __name__ == "__main__":
    main()
