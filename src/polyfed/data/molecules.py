"""Molecules as padded graphs: what RDKit says of heavy atoms and of the bonds between them, from SMILES strings."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput, shown

MOST = 9  # heavy atoms of a molecule of QM9
ELEMENTS = ("C", "N", "O", "F")
HYBRIDS = ("SP", "SP2", "SP3")
ATOM = (*ELEMENTS, "degree", "charge", "aromatic", *HYBRIDS, "hydrogens")  # the columns of an atom
TYPES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
# A bond is one byte: 0 is none, 1 to 4 are the types, and 5 to 8 are those in a ring.
BONDS = np.array([[*(int(j == i % 4) for j in range(4)), i // 4] for i in range(8)])  # row b - 1: the type, in a ring

Graphs = dict[str, NDArray[Any]]


def rdkit_version() -> str:
    """The version of RDKit, by which a few bonds are aromatic or not; a sentence where there is none."""
    try:
        return metadata.version("rdkit")
    except metadata.PackageNotFoundError:
        raise BadInput("Graphs of molecules need RDKit: pip install 'polyfed[molecules]'.") from None


def graphs(smiles: Sequence[str]) -> Graphs:
    """Padded graphs of some molecules, hydrogens counted at their heavy atoms.

    Args:
        smiles: a string each; at most 9 heavy atoms C, N, O, F.

    Returns:
        atoms (n, 9, 11): the columns `ATOM`; bonds (n, 9, 9): bytes, symmetric; mask (n, 9): where there is an atom.
    """
    rdkit_version()
    from rdkit import Chem, rdBase

    n = len(smiles)
    atoms, bonds = np.zeros((n, MOST, len(ATOM)), np.int8), np.zeros((n, MOST, MOST), np.uint8)
    mask = np.zeros((n, MOST), np.bool_)
    with rdBase.BlockLogs():  # RDKit's own words about a string it cannot read
        for i, text in enumerate(smiles):
            molecule = Chem.MolFromSmiles(text)
            if molecule is None or not 0 < molecule.GetNumAtoms() <= MOST:
                raise BadInput(f"A molecule should be SMILES of 1 to {MOST} heavy atoms. Found {shown(text)}.")
            mask[i, : molecule.GetNumAtoms()] = True
            for a, atom in enumerate(molecule.GetAtoms()):
                atoms[i, a] = _atom(atom, text)
            for bond in molecule.GetBonds():
                a, b = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
                bonds[i, a, b] = bonds[i, b, a] = 1 + TYPES.index(str(bond.GetBondType())) + 4 * bond.IsInRing()
    return {"atoms": atoms, "bonds": bonds, "mask": mask}


def _atom(atom: Any, text: str) -> list[int]:
    """An atom's columns."""
    if atom.GetSymbol() not in ELEMENTS:
        raise BadInput(f"A molecule should be of {', '.join(ELEMENTS)} and H. Found {shown(text)}.")
    numbers = [atom.GetDegree(), atom.GetFormalCharge(), int(atom.GetIsAromatic())]
    hybrid = str(atom.GetHybridization())
    kinds = [int(atom.GetSymbol() == e) for e in ELEMENTS], [int(hybrid == h) for h in HYBRIDS]
    return [*kinds[0], *numbers, *kinds[1], atom.GetTotalNumHs()]
