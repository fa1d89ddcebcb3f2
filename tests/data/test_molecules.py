"""Molecules as graphs: what RDKit says of a few that everybody knows, and what cannot be one."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest

from polyfed.core.errors import BadInput
from polyfed.data.molecules import ATOM, BONDS, graphs

# The columns of an atom: C N O F, degree, charge, aromatic, sp sp2 sp3, hydrogens.
METHANE = [[1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4]]
CYANIDE = [[1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0]]
AMMONIUM = [0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 3]


def test_atoms_and_mask() -> None:
    found = graphs(["C", "C#N", "[NH3+]CC=O"])
    assert found["atoms"].shape == (3, 9, len(ATOM))
    assert found["atoms"][0, :1].tolist() == METHANE
    assert found["atoms"][1, :2].tolist() == CYANIDE
    assert found["atoms"][2, 0].tolist() == AMMONIUM
    assert found["mask"].sum(1).tolist() == [1, 2, 4]
    assert not found["atoms"][~found["mask"]].any()


def test_bonds() -> None:
    chain, ring, aromatic, odd = graphs(["CC=CC#N", "C1CC1F", "C1=CC=CN1", "C1CC#CC1"])["bonds"]
    assert {tuple(pair): chain[tuple(pair)] for pair in np.argwhere(np.triu(chain))} == {
        (0, 1): 1, (1, 2): 2, (2, 3): 1, (3, 4): 3,
    }  # fmt: skip
    assert sorted(ring[np.triu(ring) > 0]) == [1, 5, 5, 5], "three single bonds in a ring, one beside it"
    assert sorted(aromatic[np.triu(aromatic) > 0]) == [8] * 5
    assert sorted(odd[np.triu(odd) > 0]) == [5, 5, 5, 5, 7]
    assert all((bonds == bonds.T).all() for bonds in (chain, ring, aromatic, odd))
    assert BONDS[[0, 1, 2, 7]].tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize("text", ["C(", "", "CCCCCCCCCC", "CS"])
def test_what_is_no_molecule_of_qm9_is_a_sentence(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match=r"A molecule should be .*Found"):
        graphs(["C", text])
    assert capfd.readouterr().err == ""


def test_without_rdkit_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(BadInput, match=r"need RDKit: pip install 'polyfed\[molecules\]'"):
        graphs(["C"])
