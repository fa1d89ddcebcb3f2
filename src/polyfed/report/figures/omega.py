"""How tasks are tied: the learned Omega as a heat map, related tasks beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from safetensors import SafetensorError, safe_open

from polyfed.report.figure import Axis, Figure, Numbers
from polyfed.report.records import Record

OMEGA = "tasks.omega"
INVERSE = ("mean", "fixed", "graphical")  # regularisers tr(W Omega W'), the others have Omega's inverse there
LARGEST = 400  # tasks that a heat map shows; more would be a grey square, and a heavy page


def omega(records: Sequence[Record]) -> list[Figure]:
    """A heat map for each run and model that has learned how its tasks are related."""
    several = sum(_has(record) for record in records) > 1
    return [figure for record in records for figure in _of(record, several)]


def _has(record: Record) -> bool:
    return bool(_arrays(record))


def _of(record: Record, several: bool) -> list[Figure]:
    found = []
    for model, matrix in _arrays(record).items():
        key = "-".join(["omega", *([model] if model else []), *([_word(record.name)] if several else [])])
        of = "" if not model and not several else f" of {model or record.name}"
        names, inverse = _names(record, len(matrix)), _regulariser(record, model) in INVERSE
        if (figure := heat_map(matrix, names, key, f"How tasks are related{of}", inverse)) is not None:
            found.append(figure)
    return found


def heat_map(matrix: Numbers, names: Sequence[str], key: str, title: str, inverse: bool) -> Figure | None:
    """Omega as correlations of tasks, related ones above 0; None where it ties no tasks.

    Args:
        matrix: Omega, tasks by tasks.
        names: of the tasks.
        key: of the figure.
        title: above it.
        inverse: whether Omega is large and negative for related tasks, as the inverse of a covariance is.
    """
    ties = correlations(-matrix if inverse else matrix)
    if len(ties) < 2 or len(ties) > LARGEST or not np.isfinite(ties).all() or not (ties - np.diag(np.diag(ties))).any():
        return None
    order = clustered(ties)
    called = tuple(names[i] for i in order)
    about = f"A square of {len(ties)} tasks; the colour says how strongly the learned Omega ties two of them."
    sign = "-" if inverse else ""
    notes = (
        f"Shown is {sign}Omega_ij / sqrt(Omega_ii Omega_jj): above 0 two tasks' models are drawn together, below 0 "
        "apart. Tasks are in the order of a hierarchical clustering (average linkage).",
    )
    return Figure(
        key, title, about, "heatmap", Axis("tie", "tie between two tasks"), {"task": Axis("task", "task")},
        categories=called, rows=called, matrix=ties[np.ix_(order, order)], diverging=True, notes=notes,
        wide=len(ties) > 30,
    )  # fmt: skip


def correlations(matrix: Numbers) -> Numbers:
    """Entries over the roots of their diagonals, and 0 on the diagonal: a task's tie to itself says nothing."""
    scale = np.sqrt(np.clip(np.abs(np.diag(matrix)), 1e-300, None))
    ties = matrix / np.outer(scale, scale)
    np.fill_diagonal(ties, 0.0)
    return np.asarray(ties, dtype=np.float64)


def clustered(ties: Numbers) -> list[int]:
    """The order of the tasks in which related ones stand beside each other."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    rows = ties + np.diag(ties.max(1))  # a task is as near to itself as to its nearest
    return [int(i) for i in leaves_list(linkage(rows, method="average", optimal_ordering=len(ties) <= 200))]


def _arrays(record: Record) -> dict[str, Numbers]:
    """Omega by model, '' for a run of one."""
    path = None if record.path is None else record.path / "model.safetensors"
    if path is None or not path.is_file():
        return {}
    try:
        with safe_open(path, framework="numpy") as file:
            names = [name for name in list(file.keys()) if name == OMEGA or name.endswith(f".{OMEGA}")]
            found = {name: np.asarray(file.get_tensor(name), dtype=np.float64) for name in names}
    except (OSError, SafetensorError, ValueError, TypeError):
        return {}
    square = {name: a for name, a in found.items() if a.ndim == 2 and a.shape[0] == a.shape[1]}
    return {name.removesuffix(OMEGA).removesuffix("."): a for name, a in square.items()}


def _regulariser(record: Record, model: str) -> str:
    settings = record.settings.get("models", {}).get(model, {}) if model else record.settings
    algorithm = settings.get("algorithm", {}) if isinstance(settings, dict) else {}
    found = algorithm.get("regulariser", "") if isinstance(algorithm, dict) else ""
    return str(found.get("name", "") if isinstance(found, dict) else found)


def _names(record: Record, tasks: int) -> list[str]:
    """What the tasks are called, where the run says so for each of them."""
    told = (record.summary or {}).get("tasks")
    known = told if isinstance(told, list) else next((line.get("names") for line in record.each_clients_line()), None)
    if isinstance(known, list) and len(known) == tasks:
        return [str(name) for name in known]
    return [f"task {i}" for i in range(tasks)]


def _word(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-" else "-" for c in name)
