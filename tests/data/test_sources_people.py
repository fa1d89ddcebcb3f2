"""CelebA and FEMNIST, on small files in their publishers' form."""

from __future__ import annotations

import builtins
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.core.errors import BadInput
from polyfed.data import datasets
from polyfed.data.celeba import GROUPS

ATTRIBUTES = sorted(name for group in GROUPS for name in group.split())
SPLITS = [0, 2, 1, 0, 0, 2]


@pytest.fixture
def faces(place: Path) -> Path:
    """Six plain pictures; the attributes of picture i are the bits of i, over and over."""
    Image = pytest.importorskip("PIL.Image")
    folder = place / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    for i in range(6):
        Image.new("RGB", (178, 218), (40 * i, 20, 200)).save(folder / "img_align_celeba" / f"00000{i}.jpg")
    rows = [f"00000{i}.jpg " + " ".join(" 1" if bit(i, j) else "-1" for j in range(40)) for i in range(6)]
    (folder / "list_attr_celeba.txt").write_text("\n".join(["6", " ".join(ATTRIBUTES), *rows]) + "\n")
    (folder / "list_eval_partition.txt").write_text("".join(f"00000{i}.jpg {s}\n" for i, s in enumerate(SPLITS)))
    return folder


def bit(i: int, j: int) -> bool:
    return bool(i >> (j % 3) & 1)


def test_celeba_has_forty_objectives_and_keeps_the_official_splits(faces: Path) -> None:
    data = datasets["celeba"](size=16)
    order = [0, 3, 4, 1, 5]  # training pictures, then test pictures; validation is left out
    assert data.x.shape == (5, 3, 16, 16)
    assert data.rows == 3
    assert [o.name for o in data.objectives] == ATTRIBUTES
    for j, name in enumerate(ATTRIBUTES):
        assert data.targets[name].tolist() == [bit(i, j) for i in order]
    assert np.abs(data.x[:, 0].mean((1, 2)) - [40 * i for i in order]).max() < 4, "red, up to JPEG"
    male, attractive, mouth = (data.targets[n].astype(int) for n in ("Male", "Attractive", "Mouth_Slightly_Open"))
    assert np.array_equal(data.labels, 4 * attractive + 2 * male + mouth)


def test_celeba_5_has_the_papers_groups(faces: Path) -> None:
    every, five = datasets["celeba"](), datasets["celeba-5"]()
    assert sorted(name for group in GROUPS for name in group.split()) == sorted(set(ATTRIBUTES))
    assert [o.name for o in five.objectives] == [f"group-{g}" for g in range(1, 6)]
    for g, group in enumerate(GROUPS):
        assert len(group.split()) == 8
        expected = np.stack([every.targets[name] for name in group.split()], 1)
        assert np.array_equal(five.targets[f"group-{g + 1}"], expected)


def test_celebas_archive_gives_what_the_folder_gives(faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datasets["celeba"]().x
    with zipfile.ZipFile(faces / "img_align_celeba.zip", "w") as z:
        for path in (faces / "img_align_celeba").iterdir():
            z.write(path, f"img_align_celeba/{path.name}")
            path.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(faces / "another"))
    assert np.array_equal(datasets["celeba"]().x, before)


def test_celeba_says_what_it_lacks(faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (faces / "img_align_celeba" / "000004.jpg").write_bytes(b"no picture")
    with pytest.raises(BadInput, match=r"img_align_celeba cannot be read"):
        datasets["celeba"]()
    importing = builtins.__import__

    def without_pillow(name: str, *args: Any, **options: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return importing(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(BadInput, match=r"needs Pillow: pip install pillow"):
        datasets["celeba"]()
    (faces / "list_eval_partition.txt").unlink()
    with pytest.raises(BadInput, match=r"whose terms a person has to accept, and put them in .*celeba"):
        datasets["celeba"]()


@pytest.fixture
def writers(place: Path) -> Path:
    """Two files of users to train and one to test, as LEAF writes them; 'b' is in all, 'c' has nothing."""
    rng = np.random.default_rng(0)
    users = {"train/all_data_0.json": {"a": 3, "b": 2}, "train/all_data_1.json": {"c": 0, "d": 1}}
    for name, counts in {**users, "test/all_data_0.json": {"b": 2, "d": 1}}.items():
        path = place / "femnist" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {
            user: {"x": (rng.integers(0, 256, (n, 784)) / 255).tolist(), "y": rng.integers(0, 62, n).tolist()}
            for user, n in counts.items()
        }
        path.write_text(json.dumps({"users": list(counts), "num_samples": list(counts.values()), "user_data": data}))
    return place / "femnist"


def test_femnist_keeps_users_and_splits(writers: Path) -> None:
    data = datasets["femnist"]()
    assert data.x.shape == (9, 1, 28, 28)
    assert data.rows == 6
    assert data.keys["user"].tolist() == [0, 0, 0, 1, 1, 2, 1, 1, 2]
    first = json.loads((writers / "train" / "all_data_0.json").read_text())["user_data"]["b"]
    assert np.allclose(data.x[3].ravel() / 255, first["x"][0])
    assert data.targets["character"][3:5].tolist() == first["y"]


def test_femnist_says_what_it_lacks(writers: Path) -> None:
    path = writers / "train" / "all_data_0.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(BadInput, match=r"all_data_0.json cannot be read"):
        datasets["femnist"]()
    (writers / "test" / "all_data_0.json").unlink()
    with pytest.raises(
        BadInput, match=r"needs .json files in train/ and in test/; make it with github.com/TalwalkarLab/leaf"
    ):
        datasets["femnist"]()
