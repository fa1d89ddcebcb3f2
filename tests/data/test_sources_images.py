"""MNIST, Fashion-MNIST, CIFAR-10 and what is composed of them, on a handful of images written here."""

from __future__ import annotations

import copy
import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from polyfed.core.errors import BadInput
from polyfed.data import Dataset, datasets
from polyfed.data.attributes import NAMES, NINE
from samples import write_idx, write_mnist

TRAIN, TEST = 30, 10


def write_cifar(path: Path, batch: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    with tarfile.open(path, "w:gz") as tar:
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            labels = rng.integers(0, 10, (batch, 1))
            records = np.concatenate([labels, rng.integers(0, 256, (batch, 3072))], 1).astype(np.uint8).tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = len(records)
            tar.addfile(member, io.BytesIO(records))


@pytest.fixture
def images(place: Path) -> Path:
    write_mnist(place / "mnist", 1, TRAIN, TEST)
    write_mnist(place / "fashion_mnist", 2, TRAIN, TEST)
    write_cifar(place / "cifar10" / "cifar-10-binary.tar.gz")
    return place


def load(name: str, **options: Any) -> Dataset:
    dataset: Dataset = datasets[name](**options)
    return dataset


@pytest.mark.parametrize(("name", "objective"), [("mnist", "digit"), ("fashion-mnist", "garment")])
def test_mnist(images: Path, name: str, objective: str) -> None:
    data = load(name)
    assert data.x.shape == (TRAIN + TEST, 1, 28, 28)
    assert data.x.dtype == np.uint8
    assert data.rows == TRAIN
    assert sorted(data.targets[objective][:TRAIN]) == sorted(np.arange(TRAIN) % 10)
    with gzip.open(images / name.replace("-", "_") / "t10k-images-idx3-ubyte.gz") as f:
        assert data.x[TRAIN:].tobytes() == f.read()[16:]


def test_unpacked_mnist_is_read_too(images: Path) -> None:
    packed = images / "mnist" / "train-images-idx3-ubyte.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    before = load("mnist").x
    packed.unlink()
    assert np.array_equal(load("mnist").x, before)


def test_prepare_scales_and_copies(images: Path) -> None:
    data = load("cifar10")
    assert data.prepare is not None
    x = torch.from_numpy(data.x[:3])
    scaled = copy.deepcopy(data.prepare)(x)
    assert scaled.dtype == torch.float32
    assert x.dtype == torch.uint8
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    assert torch.allclose(scaled, (x / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "second", "side", "at"), [("multimnist", "mnist", 36, 6), ("mnist-fmnist", "fashion-mnist", 42, 14)]
)
def test_overlaid_pairs_are_a_canvas_scaled_down(images: Path, name: str, second: str, side: int, at: int) -> None:
    data, first, others = load(name, seed=5), load("mnist"), load(second)
    (y1, y2), (labels,) = data.targets.values(), others.targets.values()
    assert np.array_equal(y1, first.targets["digit"])
    assert np.array_equal(np.asarray(data.labels), 10 * y1 + y2)
    for split in (range(TRAIN), range(TRAIN, TRAIN + TEST)):
        fits = [[j for j in split if np.array_equal(canvas(first, others, i, j, side, at), data.x[i])] for i in split]
        partners = [j for some in fits for j in some]
        assert sorted(partners) == list(split), "each image of a split is the second once, in that split"
        assert np.array_equal(labels[partners], y2[split])


def canvas(first: Dataset, second: Dataset, i: int, j: int, side: int, at: int) -> np.ndarray:
    """The construction as published, step by step, on one image."""
    whole = torch.zeros(1, 1, side, side)
    whole[..., :28, :28] = torch.from_numpy(first.x[i]).float()
    window = whole[..., at : at + 28, at : at + 28]
    window.copy_(torch.maximum(window, torch.from_numpy(second.x[j]).float()))
    return F.interpolate(whole, size=(28, 28), mode="nearest")[0].byte().numpy()


def test_cifar10_mnist_is_what_pillow_pastes(images: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    data, photographs, digits = load("cifar10-mnist", seed=0), load("cifar10"), load("mnist")
    assert data.rows == 20
    row = 7
    photograph = Image.fromarray(photographs.x[row].transpose(1, 2, 0))
    candidates = [j for j in range(TRAIN) if digits.targets["digit"][j] == data.targets["digit"][row]]
    pasted = []
    for j in candidates:
        digit, whole = Image.fromarray(digits.x[j, 0]), photograph.copy()
        whole.paste(digit, (2, 2), mask=digit.point(lambda v: 156 if v > 0 else 0))
        pasted.append(np.asarray(whole).transpose(2, 0, 1))
    assert any(np.array_equal(p, data.x[row]) for p in pasted)


def test_pairs_follow_the_seed_and_nothing_else(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = load("multimnist", seed=1), load("multimnist", seed=2)
    assert not np.array_equal(one.x, other.x)
    monkeypatch.setenv("XDG_CACHE_HOME", str(images / "another"))
    again = load("multimnist", seed=1)
    assert np.array_equal(one.x, again.x)
    assert np.array_equal(one.targets["right"], again.targets["right"])


def test_cifar10_from_the_publishers_file_and_from_the_compact_subset(images: Path) -> None:
    whole = load("cifar10")
    assert whole.x.shape == (24, 3, 32, 32)
    assert whole.rows == 20
    x = whole.x.copy()
    x[:, 0] -= x[:, 1]
    x[:, 2] -= x[:, 1]
    d = np.diff(np.diff(x, axis=-1, prepend=np.uint8(0)), axis=-2, prepend=np.uint8(0))
    y = whole.targets["object"]
    (images / "cifar10" / "cifar-10-binary.tar.gz").unlink()
    np.savez(images / "cifar10" / "cifar10_20k_5k.npz", dx_train=d[:20], y_train=y[:20], dx_test=d[20:], y_test=y[20:])
    with pytest.raises(BadInput, match=r"holds only a part of CIFAR-10; .*data.subset = true"):
        load("cifar10")
    assert np.array_equal(load("cifar10", subset=True).x, whole.x)


def test_attributes_are_what_they_say(images: Path) -> None:
    data, clothes = load("fashion-attributes"), load("fashion-mnist")
    assert tuple(data.targets) == NAMES
    assert len(NAMES) == 40
    garment, x = clothes.targets["garment"], clothes.x[:, 0].astype(float)
    assert np.array_equal(data.targets["footwear"], np.isin(garment, [5, 7, 9]))
    measured = {
        "cell-1-2": x[:, 7:14, 14:21].mean((1, 2)),
        "contrast": x.std((1, 2)),
        "left-right": abs(x[:, :, :14].mean((1, 2)) - x[:, :, 14:].mean((1, 2))),
        "vertical-edges": (np.diff(x, axis=1) ** 2).sum((1, 2)),
        "centre": x[:, 10:18, 10:18].mean((1, 2)),
    }
    for name, value in measured.items():
        assert np.array_equal(data.targets[name], value > np.median(value[:TRAIN])), name


def test_an_attribute_whose_median_is_the_largest_value_still_divides(images: Path) -> None:
    """All random images are 28 high but one: without care nobody would be above the median."""
    path = images / "fashion_mnist" / "train-images-idx3-ubyte.gz"
    x = load("fashion-mnist").x[:TRAIN, 0].copy()
    x[:, 0] = x[:, 27] = 1
    x[0, 20:] = 0
    write_idx(path, x)
    height = load("fashion-attributes").targets["height"][:TRAIN]
    assert height[0] == 0
    assert height[1:].all()


def test_attributes_in_groups_and_the_nine(images: Path) -> None:
    every, groups = load("fashion-attributes"), load("fashion-attributes", objectives="groups")
    assert [o.name for o in groups.objectives] == [f"group-{g}" for g in range(1, 6)]
    assert np.array_equal(groups.targets["group-2"], np.stack([every.targets[n] for n in NAMES[8:16]], 1))
    assert tuple(load("fashion-attributes", objectives="nine").targets) == NINE


def test_a_cut_or_mistaken_file_is_a_sentence(images: Path) -> None:
    folder = images / "mnist"
    packed = folder / "t10k-images-idx3-ubyte.gz"
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-100])
    with pytest.raises(BadInput, match=r"t10k-images-idx3-ubyte.gz cannot be read"):
        load("mnist")
    packed.write_bytes((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(BadInput, match=r"t10k-images-idx3-ubyte.gz cannot be read"):
        load("multimnist", seed=0)
    write_idx(packed, np.zeros((TEST + 1, 28, 28)))
    with pytest.raises(BadInput, match=r"t10k-labels-idx1-ubyte.gz cannot be read"):
        load("mnist")
    (images / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(b"no archive")
    with pytest.raises(BadInput, match=r"cifar-10-binary.tar.gz cannot be read"):
        load("cifar10")
