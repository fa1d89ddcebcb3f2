"""Mulan's multi-target regression sets (Spyromitros-Xioufis et al. 2016): River Flow `rf1` and fifteen others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.store import File, Source, arrays, reading, stored
from polyfed.data.tables import standard

Missing = Literal["drop", "mean"]
Floats = NDArray[np.float64]

# What is predicted, and how many targets there are: the last columns of the publisher's .arff.
SETS = {
    "andro": ("water quality in Thermaikos gulf", 6),
    "atp1d": ("air ticket prices of the next day", 6),
    "atp7d": ("air ticket prices of the next seven days", 6),
    "edm": ("electrical discharge machining", 2),
    "enb": ("heating and cooling loads of buildings", 2),
    "jura": ("heavy metals in the soil of the Swiss Jura", 3),
    "oes10": ("employment in US cities in 2010", 16),
    "oes97": ("employment in US cities in 1997", 16),
    "osales": ("online sales of products in twelve months", 12),
    "rf1": ("river flow at eight places of the Mississippi network, 48 hours ahead", 8),
    "scm20d": ("prices in supply chain management, 20 days ahead", 16),
    "scpf": ("views, votes and comments on issues seen, clicked and fixed", 3),
    "sf1": ("solar flares in 1969", 3),
    "sf2": ("solar flares in 1978", 3),
    "slump": ("slump, flow and strength of concrete", 3),
    "wq": ("plants and animals in Slovenian rivers", 14),
}


def _register(name: str, about: str, targets: int) -> None:
    url = "https://github.com/tsoumakas/mulan/tree/master/data/multi-target"
    file = File(f"{name}.arff", (f"{name}.npz",))
    source = Source(name, "mulan_mtr", (file,), f"get {name}.arff from {url} and put it")

    def load(*, missing: Missing = "drop" if name == "rf1" else "mean", standardise: bool = True) -> Dataset:
        return _dataset(*_table(source.paths()[0], targets), missing, standardise)

    load.__doc__ = f"""Mulan {name}: {about}; {targets} objectives.

    Args:
        missing: 'drop' leaves out rows that lack a value; 'mean' puts the column's mean in its place.
        standardise: every feature and target to mean 0 and variance 1 over all rows; false leaves them in their units.
    """
    stored(name, source)(load)


for _name, (_about, _targets) in SETS.items():
    _register(_name, _about, _targets)


def _dataset(X: Floats, Y: Floats, names: list[str], missing: Missing, standardise: bool) -> Dataset:
    X, Y = _dropped(X, Y) if missing == "drop" else (_filled(X), _filled(Y))
    x, y = (standard(X), standard(Y)) if standardise else (X.astype(np.float32), Y.astype(np.float32))
    targets = {name: np.ascontiguousarray(y[:, j]) for j, name in enumerate(names)}
    return Dataset(x, targets, tuple(Objective(name, "squared") for name in names))


def _dropped(X: Floats, Y: Floats) -> tuple[Floats, Floats]:
    whole = ~(np.isnan(X).any(1) | np.isnan(Y).any(1))
    if not whole.any():
        raise BadInput("data.missing = 'drop' leaves nothing: every row of this set lacks a value; use 'mean'.")
    return X[whole], Y[whole]


def _filled(columns: Floats) -> Floats:
    present = ~np.isnan(columns)
    mean = np.where(present, columns, 0).sum(0) / np.maximum(present.sum(0), 1)
    return np.where(present, columns, mean)


def _table(path: Path, targets: int) -> tuple[Floats, Floats, list[str]]:
    X, Y, names = arrays(path, "X", "Y", "target_names") if path.suffix == ".npz" else _arff(path, targets)
    return X, Y, [str(name).replace(".", "_") for name in names]  # torch's modules have no dots in their names


def _arff(path: Path, targets: int) -> list[NDArray[Any]]:
    """The publisher's format; a nominal value counts as its place in the declaration."""
    from scipy.io import arff

    with reading(path):
        rows, meta = arff.loadarff(path)
        columns = []
        for name in meta.names():
            kind, values = meta[name]
            nominal = kind == "nominal"
            columns.append([values.index(v.decode()) for v in rows[name]] if nominal else rows[name])
        table = np.array(columns, dtype=np.float64).T
        return [table[:, :-targets], table[:, -targets:], np.array(meta.names()[-targets:])]
