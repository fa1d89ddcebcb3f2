"""Sources: rows that are read when they are needed are the rows that memory would hold."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyfed import BadInput, Federation
from polyfed.core.source import Files, Held, Index, Joined, MemoryMap, Placed, Source, Structure
from polyfed.core.structure import joined, leaves, length, tensors

X = np.arange(120, dtype=np.float32).reshape(30, 4)
ROWS = np.array([7, 3, 29, 3, 0])


class Numbers(Source):
    """A user's own source, which notes how much is read at once."""

    def __init__(self, rows: int, bad: int = -1) -> None:
        self.rows, self.bad, self.most = rows, bad, 0

    def __len__(self) -> int:
        return self.rows

    def read(self, rows: Index) -> Tensor:
        self.most = max(self.most, len(rows))
        return torch.from_numpy(np.where(rows == self.bad, np.nan, rows).astype(np.float32))[:, None]


def mapped_file(folder: Path, x: Any = X) -> Any:
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r")


def every(folder: Path) -> dict[str, Source]:
    """The same rows from each kind of source."""
    for i, row in enumerate(X):
        np.save(folder / f"{i:02}.npy", row)
    files = Files(folder, pattern="[0-9]*.npy")
    found = tensors(mapped_file(folder))
    return {
        "map": found,
        "files": files,
        "held": Held(torch.from_numpy(X)),
        "joined": Joined([found.select(np.arange(11)), torch.from_numpy(X[11:20]), files.select(np.arange(20, 30))]),
        "selected": Joined([files, found]).select(np.arange(30, 60)),
        "placed": Placed(files, torch.device("cpu")),
    }


@pytest.mark.parametrize("kind", ["map", "files", "held", "joined", "selected", "placed"])
def test_every_source_gives_the_rows_asked_for_also_selected_and_in_another_process(kind: str, tmp_path: Path) -> None:
    source = every(tmp_path)[kind]
    for one in (source, pickle.loads(pickle.dumps(source)), copy.deepcopy(source)):
        assert len(one) == 30
        assert one.read(ROWS).numpy().tolist() == X[ROWS].tolist()
        assert one.select(np.array([5, 29, 1])).select(np.array([1, 0])).read(np.array([0, 1, 1])).tolist() == [
            X[29].tolist(), X[5].tolist(), X[5].tolist(),
        ]  # fmt: skip


def test_a_selection_reads_and_copies_nothing_and_leaves_out_sources_without_rows_in_it(tmp_path: Path) -> None:
    own = Numbers(20)
    parts = Joined([Numbers(10), own, Numbers(10)])
    some = parts.select(np.array([12, 15]))
    assert own.most == 0
    assert some.read(np.array([1])).tolist() == [[5.0]]
    assert len(pickle.dumps(parts.select(np.array([5])))) < len(pickle.dumps(parts))
    ends = parts.select(np.array([35, 3, 32]))
    assert ends.read(np.arange(3)).tolist() == [[5.0], [3.0], [2.0]]
    assert own.most == 1


def test_a_slice_of_a_map_opens_its_own_rows_elsewhere(tmp_path: Path) -> None:
    whole = mapped_file(tmp_path)
    for some in (whole[3:20:2], whole[:, 1:3], whole[::-1], whole.T):
        again = pickle.loads(pickle.dumps(MemoryMap(some)))
        assert again.read(np.array([0, 2])).tolist() == some[[0, 2]].tolist()
    (tmp_path / "raw").write_bytes(b"abc" + X.astype(">f4").tobytes())
    odd = np.memmap(tmp_path / "raw", dtype=">f4", mode="r", offset=3, shape=(30, 4))
    assert pickle.loads(pickle.dumps(MemoryMap(odd))).read(ROWS).tolist() == X[ROWS].tolist()


def test_a_map_travels_as_its_path(tmp_path: Path) -> None:
    source = tensors(mapped_file(tmp_path, np.zeros((100_000, 10))))
    message = pickle.dumps(source)
    assert len(message) < 1000
    (tmp_path / "x.npy").unlink()
    with pytest.raises(BadInput, match=r"The memory map .*x.npy cannot be opened"):
        pickle.loads(message).read(ROWS)


def test_maps_stand_for_arrays_wherever_these_may_stand_and_what_was_computed_from_them_is_held(tmp_path: Path) -> None:
    lazy = mapped_file(tmp_path)
    assert isinstance(tensors(lazy), MemoryMap)
    assert isinstance(tensors(lazy * 2), Tensor)
    assert isinstance(tensors(lazy[[1, 2]]), Tensor)
    nested = tensors({"a": lazy, "b": (torch.arange(30), lazy[:, :1])})
    assert isinstance(nested, Structure)
    assert length(nested) == 30
    assert leaves(nested) == []
    found = nested.read(ROWS)
    assert found["b"][0].tolist() == ROWS.tolist()
    assert found["b"][1].tolist() == X[ROWS, :1].tolist()
    assert nested.select(ROWS).read(np.array([2]))["a"].tolist() == X[29:].tolist()
    assert isinstance(joined([torch.from_numpy(X), tensors(lazy)]), Joined)
    with pytest.raises(BadInput, match="need one row per example"):
        tensors({"a": lazy, "b": torch.arange(29)})


def test_a_federation_slices_indices_and_holds_targets(tmp_path: Path) -> None:
    lazy, y = mapped_file(tmp_path), np.arange(30) % 3
    np.save(tmp_path / "y.npy", y)
    targets = np.load(tmp_path / "y.npy", mmap_mode="r")
    clients = [np.arange(c, 20, 5) for c in range(5)]
    streamed = Federation.from_arrays(lazy[:20], targets[:20], clients=clients, test=(lazy[20:], targets[20:]))
    held = Federation.from_arrays(X[:20], y[:20], clients=clients, test=(X[20:], y[20:]))
    assert streamed.streamed
    assert not held.streamed
    assert isinstance(streamed.targets[""], Tensor)
    for make in (lambda f: f, lambda f: f.alone(3), lambda f: f.shard(1, 4), Federation.pooled, Federation.at_server):
        one, other = make(streamed), make(held)
        assert one.streamed
        rows = torch.from_numpy(other.rows("train", 0))
        assert torch.equal(one.take(rows).x, other.take(rows).x)
        assert torch.equal(one.take(rows).targets[""], other.take(rows).targets[""])


def test_a_federation_of_one_map_per_client(tmp_path: Path) -> None:
    for c in range(3):
        np.save(tmp_path / f"{c}.npy", X[10 * c : 10 * c + 10])
    maps = [np.load(tmp_path / f"{c}.npy", mmap_mode="r") for c in range(3)]
    federation = Federation.from_clients([(m, np.zeros(10)) for m in maps])
    assert federation.take(torch.tensor([25, 4])).x.tolist() == X[[25, 4]].tolist()
    assert isinstance(federation.alone(1).x.read(np.array([0])), Tensor)


def test_a_folders_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ["1.npy", "2.npy", "10.npy", "100.npy", "a.npy", "a1-2.npy", "a1-10.npy", "a02.npy", "a2.npy", "b.npy"]
    for i, name in enumerate(names):
        np.save(tmp_path / name, np.array([i]))
    assert Files(tmp_path).read(np.arange(10))[:, 0].tolist() == [*range(10)]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = every(tmp_path)["files"]
    (tmp_path / "07.npy").write_bytes(b"no array")
    assert files.read(np.array([6, 8])).shape == (2, 4)
    with pytest.raises(BadInput, match=r"The file .*07\.npy cannot be read \(ValueError"):
        files.read(ROWS)
    np.save(tmp_path / "07.npy", np.zeros(5))
    with pytest.raises(BadInput, match=r"should be arrays of one shape"):
        files.read(ROWS)


@pytest.mark.parametrize(("make", "why"), [
    (lambda folder: Files(folder / "none"), "a folder or a list of paths"),
    (lambda folder: Files(folder, pattern="*.png"), "at least one"),
    (lambda folder: MemoryMap(np.memmap(folder / "n", np.float32, "w+", shape=())), "one row per example"),
])  # fmt: skip
def test_what_is_no_source_is_refused(make: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=why):
        make(tmp_path)


def test_features_are_looked_at_as_they_are_read() -> None:
    federation = Federation.from_arrays(Numbers(20, bad=13), np.zeros(20), clients=2)
    assert federation.take(torch.tensor([3, 12])).rows == 2
    with pytest.raises(BadInput, match=r"x should hold finite numbers. Found NaN or infinity in row 13;"):
        federation.take(torch.tensor([3, 13]))
    mends = replace(federation, prepare=lambda x: x.nan_to_num())
    assert mends.take(torch.tensor([3, 13])).x.tolist() == [[3.0], [0.0]]


class Wrong(Numbers):
    def read(self, rows: Index) -> Any:
        return super().read(rows)[:-1]


def test_a_source_that_gives_other_rows_than_asked_for_is_refused() -> None:
    federation = Federation.from_arrays(Wrong(20), np.zeros(20), clients=2)
    with pytest.raises(BadInput, match=r"tensors with the 2 rows asked for. Found Tensor of shape \(1, 1\)"):
        federation.take(torch.tensor([3, 4]))
    mixed = Joined([Numbers(5), torch.zeros(5, 2)])
    with pytest.raises(BadInput, match="rows of one shape"):
        mixed.read(np.array([1, 7]))
