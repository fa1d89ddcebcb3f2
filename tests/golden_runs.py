"""What the code does, recorded: final losses, bytes, cohorts and model checksums of many small runs.

    python tests/golden_runs.py                 # what has changed since tests/golden/runs.json was written
    python tests/golden_runs.py --write         # write it anew, all of it
    python tests/golden_runs.py --write mocha   # only the runs whose name contains the word

Runs are float64 and go through experiment settings, as a file would. Checksums of models hold on the machine that wrote
them only (`fingerprint`); losses are compared to a tolerance everywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).parent / "golden" / "runs.json"

DIGITS: dict[str, Any] = {
    "rounds": 3,
    "cohort": 4,
    "data": {"name": "two-digits", "clients": 6, "examples": 240, "partition": "dirichlet", "alpha": 1.0},
    "model": {"name": "mlp", "hidden": [6], "dtype": "float64"},
}
LOCAL = {"lr": 0.2, "local_steps": 3, "batch_size": 8}
TASKS: dict[str, Any] = {
    "rounds": 6,
    "cohort": "all",
    "data": {"name": "related-tasks", "tasks": 6, "rows": 20, "partition": "natural", "key": "task", "test": 0.25},
    "model": {"name": "linear", "dtype": "float64"},
}
WEIGHTINGS = {
    "aligned-mtl": {}, "cagrad": {}, "dualproj": {}, "fairgrad": {}, "fixed": {"weights": [1.0, 3.0]}, "gradvac": {},
    "imtl-g": {}, "mean": {}, "mgda": {}, "min-norm": {}, "pcgrad": {}, "pgd": {}, "random": {},
    "sum": {}, "uniform": {}, "upgrad": {},
}  # fmt: skip
REGULARISERS: dict[str, dict[str, Any]] = {
    "independent": {}, "mean": {}, "clustered": {"lam": 1.0, "clusters": 2}, "probabilistic": {"lam": 1.0},
    "graphical": {"lam": 1.0}, "fixed": {"omega": [[2.0 * (i == j) for j in range(6)] for i in range(6)]},
}  # fmt: skip
HALF = {**DIGITS["data"], "holds": 0.5}


def neural(name: str, **settings: Any) -> dict[str, Any]:
    return {**DIGITS, "algorithm": {"name": name, **LOCAL, **settings}}


def task(name: str, **settings: Any) -> dict[str, Any]:
    return {**TASKS, "algorithm": {"name": name, **settings}}


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every run by its name: algorithm x compressor x weighting x schedule, then faults, attacks, engines."""
    for by in ("uniform", "size"):
        yield from by_weight(by)
    for weighting, options in WEIGHTINGS.items():
        for name in ("fedcmoo", "fsmgda"):
            yield f"{name} weighting={weighting}", neural(name, weighting=weighting, weighting_options=options)
    yield "afl", {**DIGITS, "algorithm": {"name": "afl", "lr": 0.5}}
    yield "centralised", {**DIGITS, "algorithm": {"name": "centralised", "lr": 0.2}}
    yield "fsmgda output=random", neural("fsmgda", output="random")
    yield "fedavg adam", neural("fedavg", optimizer="adam", lr=0.01)
    yield (
        "fedavg epochs, momentum, decay",
        neural("fedavg", momentum=0.9, local_steps=0, local_epochs=1, lr={"start": 0.2, "decay": 0.5, "every": 1}),
    )
    yield from many_tasks()
    yield from many_models()
    yield from troubles()


def by_weight(by: str) -> Iterator[tuple[str, dict[str, Any]]]:
    plain = ("fedavg", "fedprox", "fedavg-n", "fedmgda", "fedmgda+", "mgda-prox", "q-fedavg", "fmgda", "fsmgda")
    for name in plain:
        yield f"{name} by {by}", neural(name, weighting_by=by)
    yield f"fsmgda combined by {by}", neural("fsmgda", upload="combined", width=16, weighting_by=by)
    yield f"fedcmoo-pref by {by}", neural("fedcmoo-pref", preference={"left": 1, "right": 2}, weighting_by=by)
    yield f"fsmgda half by {by}", {**neural("fsmgda", weighting_by=by), "data": HALF}
    yield f"fedcmoo half by {by}", {**neural("fedcmoo", weighting_by=by, width=16), "data": HALF}
    for compress in ("sketch", "exact", "rand-svd", "top-k", "random-mask", "client-grams"):
        size = {"width": 16} if compress == "sketch" else {"budget": 2.0}
        for exchanges in (1, 2):
            how = {"compress": compress, "exchanges": exchanges, "weighting_by": by, **size}
            yield f"fedcmoo {compress} exchanges={exchanges} by {by}", neural("fedcmoo", **how)
        if compress in ("exact", "rand-svd", "top-k", "random-mask"):
            two = {"compress": compress, "ways": 2, "weighting_by": by, **size}
            yield f"fedcmoo {compress} ways=2 by {by}", neural("fedcmoo", **two)
        if compress in ("sketch", "exact", "random-mask"):
            sets = {"compress": compress, "gram": "two-sets", "weighting_by": by, **size}
            yield f"fedcmoo {compress} two-sets by {by}", neural("fedcmoo", **sets)


def many_tasks() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, settings in REGULARISERS.items():
        table = {"name": name, **settings}
        yield f"mocha regulariser={name}", task("mocha", regulariser=table, omega_every=2)
    for loss in ("hinge", "smoothed-hinge", "logistic", "squared"):
        yield f"mocha loss={loss}", task("mocha", loss=loss, loss_scale="mean")
    yield "mocha average, theta", task("mocha", average_from=2, measure_theta=True, per_task_sigma=True)
    yield "mocha standardise", task("mocha", standardise=True)
    yield "cocoa", task("cocoa")
    yield "mb-sdca", task("mb-sdca", batch_size=4, beta=2.0)
    yield "mb-sgd", task("mb-sgd", batch_size=4)
    yield "local", task("local")
    yield "global", task("global")


def many_models() -> Iterator[tuple[str, dict[str, Any]]]:
    digits = {"data": DIGITS["data"], "model": DIGITS["model"]}
    plain = {"name": "quadratic", "clients": 6, "examples": 10}
    quadratic = {"data": plain, "model": {"name": "point", "dtype": "float64"}}
    models: dict[str, Any] = {
        "a": {**digits, "algorithm": {"name": "fedcmoo", **LOCAL, "width": 16}},
        "b": {**quadratic, "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 2, "batch_size": 0}},
        "c": {**digits, "algorithm": {"name": "fedmgda+", **LOCAL}},
    }
    framed = {"beta": 1.0, "every": "frame"}
    for schedule in ("mfa-rr", "mfa-rand"):
        base = {"rounds": 5, "cohort": "all", "schedule": {"name": schedule}}
        yield f"models {schedule}", {**base, "models": models}
        copies = {"q": {**quadratic, "copies": 2, "algorithm": {**models["b"]["algorithm"], "lr": framed}}}
        yield f"models {schedule} copies, frame", {**base, "models": copies}
        settings = {k: v for k, v in TASKS.items() if k in ("data", "model")}
        tasks = {"t": {**settings, "algorithm": {"name": "mocha"}}, "b": models["b"]}
        yield f"models {schedule} mocha", {**base, "models": tasks, "evaluate": {"every": 2}}


def troubles() -> Iterator[tuple[str, dict[str, Any]]]:
    faults = {"drop": 0.3, "silent": [1]}
    attack = {"name": "misreport", "clients": [0, 2], "factor": 3.0, "bias": 0.5}
    for name in ("fedavg", "fedmgda+", "q-fedavg", "fsmgda", "fedcmoo"):
        yield f"{name} faults", {**neural(name), "faults": faults, "network": {"name": "3g"}}
        yield f"{name} attacks", {**neural(name), "attacks": [attack]}
    yield "afl attacks", {**DIGITS, "algorithm": {"name": "afl", "lr": 0.5}, "attacks": [attack]}
    for variability in ("high", "low"):
        yield f"mocha faults {variability}", {
            **task("mocha"), "faults": {**faults, "variability": variability}, "network": {"name": "wifi"},
        }  # fmt: skip
    both = dict(many_models())["models mfa-rr"]
    yield "models faults, attacks", {**both, "faults": {"drop": 0.2}, "attacks": [attack]}
    measured = {"clients": True, "stationarity": 1, "improved": True}
    yield "fedcmoo evaluate", {**neural("fedcmoo"), "evaluate": measured}
    for engine in ("wire", "batched"):
        yield f"fedcmoo engine={engine}", {**neural("fedcmoo", width=16), "engine": {"name": engine}}
        yield f"fedmgda+ engine={engine}", {**neural("fedmgda+"), "engine": {"name": engine}}
    for name in ("fedcmoo", "fsmgda"):
        yield f"{name} resumed", {**neural(name), "resumed": 2}
    yield "mocha resumed", {**task("mocha", omega_every=2), "resumed": 3, "faults": faults}
    yield "models resumed", {**both, "resumed": 2}


def run(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run it in a folder, and note what came out. resumed: stop after so many rounds, then go on."""
    settings = dict(settings)
    first, out = settings.pop("resumed", 0), folder / "run"
    rounds = settings["rounds"]
    _polyfed("run", _file({**settings, "rounds": first or rounds}, folder), "--out", str(out))
    if first:
        (out / "result.json").unlink()
        toml = (out / "experiment.toml").read_text()
        (out / "experiment.toml").write_text(re.sub(r"^rounds = \d+$", f"rounds = {rounds}", toml, flags=re.MULTILINE))
        _polyfed("resume", str(out))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = {name: lines[-1][name] for name in KEPT if name in lines[-1]}
    result = json.loads((out / "result.json").read_text())
    return {
        **kept,
        "cohorts": hashlib.sha256(json.dumps([line["cohort"] for line in lines]).encode()).hexdigest()[:16],
        "failures": sum(len(line["failures"]) for line in lines),
        "asked": sum(len(line["cohort"]) for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "sha256": result["model_sha256"],
    }


KEPT = (
    "losses",
    "metrics",
    "weights",
    "gap",
    "primal",
    "dual",
    "simulated_seconds",
    "stationarity",
    "improved",
    "theta",
)


def _file(settings: dict[str, Any], folder: Path) -> str:
    import tomli_w

    path = folder / "golden.toml"
    path.write_bytes(tomli_w.dumps(settings).encode())
    return str(path)


def _polyfed(*words: str) -> None:
    from typer.testing import CliRunner

    from polyfed.cli import app

    with contextlib.redirect_stdout(io.StringIO()):
        done = CliRunner().invoke(app, list(words))
    if done.exit_code != 0:
        raise RuntimeError(f"polyfed {' '.join(words)}: {done.stderr or done.exception!r}") from done.exception


def fingerprint() -> str:
    """Which machine this is, as far as rounding goes: its processor, and the libraries that compute."""
    cpu = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpu.read_text()) if cpu.is_file() else None
    libraries = [version(name) for name in ("torch", "numpy", "scipy", "numba", "daqp", "piqp")]
    parts = [model[1] if model else platform.processor(), platform.python_version(), *libraries]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def differences(was: Any, now: Any, place: str = "") -> Iterator[str]:
    """Where two records differ: numbers by more than 1e-7 of their size, anything else at all."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in sorted({*was, *now}):
            yield from differences(was.get(name), now.get(name), f"{place}.{name}" if place else name)
    elif isinstance(was, float) and isinstance(now, float | int):
        if abs(was - now) > 1e-7 * max(abs(was), 1e-3):
            yield f"{place}: {was} -> {now}"
    elif was != now:
        yield f"{place}: {was} -> {now}"


def main() -> None:
    torch.set_num_threads(1)
    write, words = "--write" in sys.argv, [word for word in sys.argv[1:] if word != "--write"]
    saved = json.loads(FILE.read_text()) if FILE.is_file() else {"runs": {}}
    runs = {} if write and not words else saved["runs"]
    for name, settings in cases():
        if words and not any(word in name for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            now = run(settings, Path(folder))
        for text in differences(saved["runs"].get(name), now) if name in saved["runs"] else ["new"]:
            print(f"{name}: {text}")
        runs[name] = now
    if write:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(kept)}" for name, kept in runs.items())
        FILE.write_text(f'{{"machine": "{fingerprint()}", "runs": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
