"""Tables: Adult, Census-Income, Mulan, QM9, tasks of MOCHA's kind and Synthetic, on a few rows written here."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from polyfed.core.errors import BadInput
from polyfed.data import datasets
from polyfed.data.mulan import SETS

ADULT = """39, State-gov, 7, Bachelors, 13, Never-married, Adm-clerical, Wife, White, Male, 2174, 0, 40, Cuba, <=50K
50, ?, 83311, Doctorate, 16, Divorced, Sales, Husband, White, Male, 0, 0, 13, ?, >50K
"""
ADULT_TEST = """|1x3 Cross validator
25, Private, 226802, Bachelors, 13, Never-married, Sales, Own-child, Black, Male, 0, 0, 40, Cuba, >50K.
"""


def test_adult(place: Path) -> None:
    (place / "adult").mkdir(parents=True)
    (place / "adult" / "adult.data").write_text(ADULT)
    (place / "adult" / "adult.test.gz").write_bytes(gzip.compress(ADULT_TEST.encode()))
    data = datasets["adult"]()
    # one workclass is known in training, two levels of education, of marital status, occupation, relationship, ...
    assert data.x.tolist() == [
        [1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1],
        [0, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0],
        [0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 1],
    ]
    assert data.rows == 2
    assert data.targets["income"].tolist() == [0, 1, 1]
    assert data.keys["education"].tolist() == [0, 1, 0]
    assert data.keys["doctorate"].tolist() == [0, 1, 0]
    (place / "adult" / "adult.data").write_text(ADULT[:-9])
    with pytest.raises(BadInput, match=r"adult.data cannot be read"):
        datasets["adult"]()


def census_line(age: int, education: str, marital: str, state: str, income: str) -> str:
    cells = ["0"] * 42
    cells[0], cells[4], cells[7], cells[21], cells[41] = str(age), education, marital, state, income
    return ", ".join(cells) + "\n"


def test_census_income_from_the_publishers_files_and_from_the_compact_one(place: Path, tmp_path: Path) -> None:
    folder = place / "census_kdd"
    folder.mkdir(parents=True)
    train = census_line(30, "B", "Never married", "?", "- 50000.") + census_line(50, "A", "Widowed", "Utah ", "50000+.")
    test = census_line(40, "C", "Never married", "Ohio", "50000+.")
    (folder / "census-income.data.gz").write_bytes(gzip.compress(train.encode()))
    (folder / "census-income.test").write_text(test)
    data = datasets["census-income"]()
    assert data.rows == 2
    assert data.targets["income"].tolist() == [0, 1, 1]
    assert data.targets["never-married"].tolist() == [1, 0, 1]
    assert data.labels is not None
    assert data.labels.tolist() == [1, 2, 3]
    assert data.keys["education"].tolist() == [1, 0, 2]
    assert data.prepare is not None
    x = data.prepare(torch.from_numpy(data.x))
    assert x.shape == (3, 7 + 30 + 3 + 3), "30 columns of one value, education and state of three"
    assert x[:, 0].tolist() == [-1, 1, 0]
    education, state = x[:, 7 + 3 : 7 + 6], x[:, 7 + 3 + 3 + 11 : 7 + 3 + 3 + 14]
    assert education.argmax(1).tolist() == [1, 0, 2]
    assert state.argmax(1).tolist() == [0, 2, 1]
    assert (x[:, 7:].sum(1) == 32).all()

    for path in folder.iterdir():
        path.unlink()
    cat, vocabulary = np.zeros((3, 33), np.uint8), [["0"]] * 33
    vocabulary[3], vocabulary[5], vocabulary[16] = list("ABC"), ["Never married", "Widowed"], ["?", "Ohio", "Utah"]
    cat[:, 3], cat[:, 5], cat[:, 16] = [1, 0, 2], [0, 1, 0], [0, 2, 1]
    num = np.zeros((3, 8))
    num[:, 0] = 30, 50, 40
    income = np.array([0, 1, 1], np.uint8)
    np.savez(folder / "census_kdd.npz", num=num, cat=cat, cat_vocab=json.dumps(vocabulary), income=income, n_train=2)
    compact = datasets["census-income"]()
    assert np.array_equal(compact.x, data.x)
    assert np.array_equal(np.asarray(compact.labels), data.labels)


def test_mulan_from_arff(place: Path) -> None:
    (place / "mulan_mtr").mkdir(parents=True)
    kinds = {"a": "{X,Y}", "b": "numeric", "one": "numeric", "Y.1": "numeric", "Y2": "numeric"}
    header = "\n".join(["@relation enb", *(f"@attribute {name} {kind}" for name, kind in kinds.items()), "@data\n"])
    (place / "mulan_mtr" / "enb.arff").write_text(header + "X, 1, 5, 10, 7\nY, ?, 5, 20, 7\nY, 3, 5, 60, 7\n")
    data = datasets["enb"](standardise=False)
    assert data.x.tolist() == [[0, 1, 5], [1, 2, 5], [1, 3, 5]], "the missing value is its column's mean"
    assert {name: y.tolist() for name, y in data.targets.items()} == {"Y_1": [10, 20, 60], "Y2": [7, 7, 7]}
    assert [o.loss for o in data.objectives] == ["squared", "squared"]
    assert datasets["enb"](missing="drop", standardise=False).x.tolist() == [[0, 1, 5], [1, 3, 5]]
    standardised = datasets["enb"]()
    assert np.allclose(standardised.x.mean(0), 0)
    assert np.allclose(standardised.x.std(0), [1, 1, 0])
    assert np.allclose(standardised.targets["Y_1"].std(), 1)


def test_every_mulan_set_is_there_by_name(place: Path) -> None:
    (place / "mulan_mtr").mkdir(parents=True)
    for name, (about, targets) in SETS.items():
        X, Y = np.eye(4), np.arange(4.0 * targets).reshape(4, targets)
        X[0, 0] = np.nan
        names = [f"y{j}" for j in range(targets)]
        np.savez(place / "mulan_mtr" / f"{name}.npz", X=X, Y=Y, target_names=names)
        data = datasets[name]()
        assert list(data.targets) == names
        assert len(data.x) == (3 if name == "rf1" else 4), "River Flow drops rows with missing values"
        assert about in datasets.help(name)
    np.savez(place / "mulan_mtr" / "rf1.npz", X=np.full((2, 2), np.nan), Y=np.eye(2), target_names=["a", "b"])
    with pytest.raises(BadInput, match=r"every row of this set lacks a value; use 'mean'"):
        datasets["rf1"]()


QM9 = {
    "Dipole_debye": 0.5, "Polarizability_bohr3": 13.21, "HOMO_au": -0.3877, "LUMO_au": 0.1171, "HOMO_LUMO_gap_au": 0.5,
    "R2_bohr2": 35.3641, "ZPVE_au": 0.044749, "InternalEnergy_0K_au": -40.47893, "InternalEnergy_298K_au": -40.476062,
    "Enthalphy_298K_au": -40.475117, "GibbsFreeEnergy_298K_au": -40.498597, "Heatcapacity_Cv_cal_mol_K": 6.469,
}  # fmt: skip
MOLECULES = {"C": [4, 1, 0, 0, 0], "N": [3, 0, 1, 0, 0], "C#N": [1, 1, 1, 0, 0], "[NH3+]CC=O": [6, 2, 1, 1, 0]}


def write_qm9(folder: Path, form: str) -> None:
    folder.mkdir(parents=True)
    table = np.array(list(QM9.values())) * (1 + np.arange(len(MOLECULES))[:, None] / 10)
    if form == "npz":
        smiles = "\n".join(MOLECULES).encode()
        atoms = np.array(list(MOLECULES.values()), np.uint8)
        np.savez(folder / "qm9_table.npz", targets=table, target_names=list(QM9), atoms_HCNOF=atoms, smiles=smiles)
        return
    lines = [
        f'"{smiles}","{atoms}",' + ",".join(map(repr, row))
        for (smiles, atoms), row in zip(MOLECULES.items(), table.tolist(), strict=True)
    ]
    header = ",".join(["SMILES", "Stoichiometry", *QM9])
    with zipfile.ZipFile(folder / "qm9pack-1.0.3-py3-none-any.whl", "w") as z:
        for part, some in ((1, lines[:2]), (2, lines[2:3]), (3, lines[3:])):
            z.writestr(f"qm9pack/data/qm9_part{part}.csv", "\n".join([header, *some]) + "\n")


@pytest.mark.parametrize("form", ["npz", "wheel"])
def test_qm9(place: Path, form: str) -> None:
    write_qm9(place / "qm9", form)
    data = datasets["qm9"](seed=0, examples=4)
    assert list(data.targets) == ["mu", "alpha", "homo", "lumo", "r2", "zpve", "u0", "u298", "h298", "g298", "cv"]
    assert data.rows == 4
    assert np.allclose(data.x.mean(0), 0, atol=1e-6)
    assert np.allclose(data.targets["mu"].std(), 1)
    # atoms H C N O F; the symbols C N O H [ ] = # + 3; the pairs C#, #N, [N, NH, H3, 3+, +], ]C, CC, C=, =O
    assert data.x.shape == (4, 5 + 10 + 11)
    with pytest.raises(BadInput, match=r"data.examples should be at most 4"):
        datasets["qm9"](seed=0, examples=5)


@pytest.mark.parametrize("form", ["npz", "wheel"])
def test_qm9_as_graphs_has_the_rows_of_the_table(place: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_qm9(place / "qm9", form)
    table, data = (datasets["qm9"](seed=3, examples=4, graphs=graphs) for graphs in (False, True))
    assert {name: v.shape for name, v in data.x.items()} == {"atoms": (4, 9, 11), "bonds": (4, 9, 9), "mask": (4, 9)}
    assert (data.rows, list(data.targets)) == (4, list(table.targets))
    assert all(np.array_equal(data.targets[name], t) for name, t in table.targets.items())
    order = np.argsort(data.targets["mu"])  # the table's rows have rising properties
    hydrogens = data.x["atoms"][order, :, -1].sum(1)
    assert hydrogens.tolist() == [atoms[0] for atoms in MOLECULES.values()]

    monkeypatch.setattr("polyfed.data.qm9.graphs_of", None)  # the second time they come from the cache
    again = datasets["qm9"](seed=3, examples=4, graphs=True)
    assert all(np.array_equal(again.x[name], values) for name, values in data.x.items())


def test_qm9_energies_are_counted_from_the_free_atoms(place: Path) -> None:
    from polyfed.data.qm9 import ATOMS

    methane = QM9["InternalEnergy_0K_au"] - np.dot(MOLECULES["C"], ATOMS["u0"])
    assert np.isclose(methane * 627.5095, -395.9996, atol=1e-3), "kcal/mol, as published"


@pytest.mark.parametrize(
    ("name", "path", "objective", "key"),
    [
        ("landmine", "landmine/landmine.npz", "mine", "field"),
        ("vehicle", "vehicle_sensor/vehicle_subset.npz", "vehicle", "sensor"),
        ("vehicle", "vehicle_sensor/vehicle.npz", "vehicle", "sensor"),
        ("google-glass", "google_glass/gleam.npz", "eating", "participant"),
        ("school", "school/school.npz", "score", "school"),
    ],
)
def test_tasks(place: Path, name: str, path: str, objective: str, key: str) -> None:
    (place / path).parent.mkdir(parents=True)
    y = {"landmine": [0, 1, 1], "school": [10, 20, 60]}.get(name, [-1, 1, 1])
    kind = {"landmine": np.uint8, "school": np.float32}.get(name, np.int8)
    task = np.array([0, 1, 1], np.uint8)
    np.savez(place / path, X=[[1, 2, 0], [3, 2, 0], [5, 2, 1]], y=np.array(y, kind), task=task)
    raw, data = datasets[name](standardise=False), datasets[name]()
    assert raw.x.tolist() == [[1, 2, 0], [3, 2, 0], [5, 2, 1]]
    assert np.allclose(data.x, [[-1.2247449, 0, 0], [0.0, 0, 0], [1.2247449, 0, 1]]), "indicators stay as they are"
    assert data.keys[key].tolist() == [0, 1, 1]
    assert data.train is None
    assert raw.targets[objective].tolist() == (y if name == "school" else [0, 1, 1])
    np.savez(place / path, X=np.eye(2))
    with pytest.raises(BadInput, match=r"cannot be read"):
        datasets[name]()


def cell_arrays(shape: tuple[int, int], xs: list[Any], ys: list[Any]) -> dict[str, Any]:
    """X and Y as MATLAB has them: cells in a row or in a column."""
    made = {"X": np.empty(len(xs), dtype=object), "Y": np.empty(len(ys), dtype=object)}
    for name, some in (("X", xs), ("Y", ys)):
        for t, value in enumerate(some):
            made[name][t] = np.asarray(value)
    return {name: some.reshape(shape) if len(some) == max(shape) else some for name, some in made.items()}


@pytest.mark.parametrize(
    ("name", "path", "objective", "key", "shape"),
    [
        ("vehicle", "vehicle_sensor/vehicle.mat", "vehicle", "sensor", (2, 1)),
        ("google-glass", "google_glass/gleam.mat", "eating", "participant", (1, 2)),
    ],
)
def test_tasks_in_cells(place: Path, name: str, path: str, objective: str, key: str, shape: tuple[int, int]) -> None:
    """As the authors' files are: a cell for each task, labels -1 and 1; whichever way MATLAB lays them."""
    (place / path).parent.mkdir(parents=True)
    with pytest.raises(BadInput, match=f"needs .*{Path(path).name}, not found; put {Path(path).name}, whose cells X"):
        datasets[name]()
    xs = [np.array([[1.0, 5, 0]]), np.array([[3.0, 5, 0], [5, 5, 1]])]
    savemat(place / path, cell_arrays(shape, xs, [[[-1.0]], [[1], [-1]]]))
    data = datasets[name](standardise=False)
    assert data.x.tolist() == [[1, 5, 0], [3, 5, 0], [5, 5, 1]]
    assert data.x.dtype == np.float32
    assert data.targets[objective].tolist() == [0, 1, 0]
    assert data.keys[key].tolist() == [0, 1, 1]
    assert np.allclose(datasets[name]().x, [[-1.2247449, 0, 0], [0.0, 0, 0], [1.2247449, 0, 1]])


def test_the_whole_vehicle_set_comes_before_its_part(place: Path) -> None:
    folder = place / "vehicle_sensor"
    folder.mkdir(parents=True)
    task = np.zeros(1, np.uint8)
    np.savez(folder / "vehicle_subset.npz", X=[[1.0, 2]], y=task, task=task)
    assert len(datasets["vehicle"]().x) == 1
    savemat(folder / "vehicle.mat", cell_arrays((2, 1), [np.eye(3)] * 2, [np.ones(3)] * 2))
    assert len(datasets["vehicle"]().x) == 6


@pytest.mark.parametrize(
    "arrays",
    [
        {"X": np.eye(3)},
        {"X": np.eye(3), "Y": np.ones(3)},
        cell_arrays((2, 1), [np.eye(3), np.eye(2)], [np.ones(3), np.ones(2)]),
        cell_arrays((1, 2), [np.eye(3), np.eye(3)], [np.ones(3), np.ones(2)]),
        cell_arrays((1, 2), [np.eye(3), np.eye(3)], [np.ones(3)]),
        cell_arrays((1, 2), [np.eye(3), np.array("secret")], [np.ones(3), np.ones(1)]),
        b"MATLAB 5.0 MAT-file, cut short: secret",
        b"",
    ],
)
def test_a_mat_of_another_kind_is_a_sentence(place: Path, arrays: Any) -> None:
    path = place / "google_glass" / "gleam.mat"
    path.parent.mkdir(parents=True)
    path.write_bytes(arrays) if isinstance(arrays, bytes) else savemat(path, arrays)
    with pytest.raises(BadInput, match=r"gleam.mat cannot be read") as caught:
        datasets["google-glass"]()
    assert "secret" not in str(caught.value)


def test_a_mat_of_version_7_3_is_a_sentence(place: Path) -> None:
    path = place / "google_glass" / "gleam.mat"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(116) + bytes(8) + bytes([0, 2]) + b"IM" + bytes(200))
    with pytest.raises(BadInput, match=r"gleam.mat cannot be read"):
        datasets["google-glass"]()


def test_synthetic_has_the_published_shapes_and_follows_the_seed() -> None:
    a, b = datasets["synthetic"](seed=0, users=8), datasets["synthetic"](seed=0, users=8, variant="B")
    assert a.x.shape[1] == 60
    assert b.x.shape[1] == 30
    assert set(a.targets["class"]) <= set(range(5))
    assert b.targets["class"].max() <= 9
    assert np.bincount(a.keys["user"]).min() >= 50
    again, fewer = datasets["synthetic"](seed=0, users=8), datasets["synthetic"](seed=0, users=3)
    assert np.array_equal(a.x, again.x)
    assert np.array_equal(a.x[: len(fewer.x)], fewer.x), "a user is the same whoever else there is"
    assert not np.array_equal(a.x[:50], datasets["synthetic"](seed=1, users=8).x[:50])


def test_synthetic_moments() -> None:
    """Between users the means of x have variance b + 1 about 0; within one, feature j has variance j^-1.2."""
    data = datasets["synthetic"](seed=3, b=4.0, users=300)
    user = data.keys["user"]
    means = np.stack([data.x[user == k].mean(0) for k in range(300)])
    assert abs(means.var() / 5 - 1) < 0.25
    within = np.concatenate([data.x[user == k] - means[k] for k in range(300)])
    assert np.allclose(within.var(0), np.arange(1, 61) ** -1.2, rtol=0.05)
