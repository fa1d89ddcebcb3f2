"""QM9 (Ramakrishnan et al. 2014): eleven properties of 130,831 small molecules, from a table without geometry.

The 11 properties are those of the multi-task literature (Lin and Zhang 2023): all but the gap and the rotational
constants, with the energies counted from the free atoms. The features are ours: how many of each atom there are, and
how often each character and each pair of neighbouring characters stands in its SMILES string; or its graph of bonds.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.errors import BadInput
from polyfed.core.keys import generator
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.molecules import graphs as graphs_of
from polyfed.data.molecules import rdkit_version
from polyfed.data.store import File, Source, arrays, cached, reading, stored
from polyfed.data.tables import standard

_WHEEL = File(
    "qm9pack-1.0.3-py3-none-any.whl",
    ("qm9_table.npz",),
    url="https://files.pythonhosted.org/packages/fd/8f/ce586cc7801ebd0880483904127b1e50a81d31d3af287379edfe1af10fc7/"
    "qm9pack-1.0.3-py3-none-any.whl",
    checksum="sha256:1d88c2988007c6778e717ee3224cf511bd60e10732ebe3b7ed500ea5af05c9f0",
)
QM9 = Source("qm9", "qm9", (_WHEEL,))
# Our names, and the columns of the table.
PROPERTIES = {
    "mu": "Dipole_debye",
    "alpha": "Polarizability_bohr3",
    "homo": "HOMO_au",
    "lumo": "LUMO_au",
    "r2": "R2_bohr2",
    "zpve": "ZPVE_au",
    "u0": "InternalEnergy_0K_au",
    "u298": "InternalEnergy_298K_au",
    "h298": "Enthalphy_298K_au",
    "g298": "GibbsFreeEnergy_298K_au",
    "cv": "Heatcapacity_Cv_cal_mol_K",
}
# Energies of the free atoms H, C, N, O, F in hartree, at the same level of theory (the publisher's atomref.txt).
ATOMS = {
    "u0": (-0.500273, -37.846772, -54.583861, -75.064579, -99.718730),
    "u298": (-0.498857, -37.845355, -54.582445, -75.063163, -99.717314),
    "h298": (-0.497912, -37.844411, -54.581501, -75.062219, -99.716370),
    "g298": (-0.510927, -37.861317, -54.598897, -75.079532, -99.733544),
}
SYMBOLS = b"CNOFH[]()=#+-12345"
TESTS = 20_000

Floats = NDArray[np.float64]
Table = tuple[Floats, Floats, bytes]  # the properties, atom counts H C N O F, and SMILES strings, a line each


@stored("qm9", QM9)
def qm9(*, seed: int, examples: Annotated[int, Field(ge=1)] = 40_000, graphs: bool = False) -> Dataset:
    """Small molecules, features counted from their SMILES or as graphs; eleven properties as objectives, standardised.

    A graph has at most 9 heavy atoms, as a dict of three arrays: atoms with 11 features each, bonds as a matrix of
    their kinds, and a mask of which atoms there are. It needs RDKit, an extra; the model "qm9-gnn" takes it.

    Args:
        examples: molecules drawn at random for the clients (FedCMOO: 40,000); 20,000 others are the server's test data.
        graphs: molecules as graphs of their bonds in place of counted features.
    """
    (path,) = QM9.paths()
    made = cached(partial(_build, path), "qm9", [path], version=1)
    order = generator(seed, "qm9").permutation(len(made["x"]))
    tests = min(TESTS, len(order) // 5)
    if examples > len(order) - tests:
        raise BadInput(f"data.examples should be at most {len(order) - tests}, which leaves {tests}. Found {examples}.")
    rows = order[: examples + tests]
    y = standard(made["y"][rows], examples)
    targets = {name: np.ascontiguousarray(y[:, j]) for j, name in enumerate(PROPERTIES)}
    objectives = tuple(Objective(name, "squared") for name in PROPERTIES)
    x: Any = _graphs(path, rows) if graphs else standard(made["x"][rows], examples)
    return Dataset(x, targets, objectives, examples)


def _graphs(path: Path, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    made = cached(partial(_build_graphs, path), "qm9-graphs", [path], version=1, rdkit=rdkit_version())
    return {name: np.ascontiguousarray(values[rows]) for name, values in made.items()}


def _build_graphs(path: Path, folder: Path) -> None:
    for name, values in graphs_of(_table(path)[2].decode("ascii").split("\n")).items():
        np.save(folder / f"{name}.npy", values)


def _build(path: Path, folder: Path) -> None:
    y, atoms, smiles = _table(path)
    for j, name in enumerate(PROPERTIES):
        if name in ATOMS:
            y[:, j] -= atoms @ ATOMS[name]
    np.save(folder / "x.npy", np.concatenate([atoms, _counts(smiles)], 1).astype(np.uint8))
    np.save(folder / "y.npy", y)


def _counts(smiles: bytes) -> NDArray[np.int64]:
    """How often each symbol and each pair of neighbours stands in each line; those in fewer than 0.1 % are left out."""
    text = np.frombuffer(smiles, np.uint8)
    line, k = np.cumsum(text == ord("\n")), len(SYMBOLS)
    code = np.array([SYMBOLS.find(c) for c in range(256)])[text]
    one = code >= 0
    two = one[:-1] & one[1:]
    pairs = _histogram(line[:-1][two], (code[:-1] * k + code[1:])[two], k * k)
    counts = np.concatenate([_histogram(line[one], code[one], k), pairs], 1)
    return counts[:, (counts > 0).mean(0) >= 1e-3]


def _histogram(line: NDArray[np.int64], code: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    n = int(line.max()) + 1
    return np.bincount(line * size + code, minlength=n * size).reshape(n, size)


def _table(path: Path) -> Table:
    return _npz(path) if path.suffix == ".npz" else _wheel(path)


def _npz(path: Path) -> Table:
    """Our compact form."""
    targets, names, atoms, smiles = arrays(path, "targets", "target_names", "atoms_HCNOF", "smiles")
    with reading(path):
        columns = [list(names).index(column) for column in PROPERTIES.values()]
    return targets[:, columns], atoms.astype(np.float64), bytes(smiles)


def _wheel(path: Path) -> Table:
    """The Python package qm9pack, which carries the table as three .csv files."""
    with reading(path), zipfile.ZipFile(path) as z:
        rows = [row for part in (1, 2, 3) for row in _rows(z, f"qm9pack/data/qm9_part{part}.csv")]
        y = np.array([row[0] for row in rows])
        return y, np.array([row[1] for row in rows]), "\n".join(row[2] for row in rows).encode()


def _rows(z: zipfile.ZipFile, name: str) -> Iterator[tuple[list[float], list[float], str]]:
    with z.open(name) as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, "ascii")):
            atoms = [float(n) for n in json.loads(row["Stoichiometry"])]
            yield [float(row[column]) for column in PROPERTIES.values()], atoms, row["SMILES"]
