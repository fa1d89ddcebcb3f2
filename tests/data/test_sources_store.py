"""Where files are looked for, what is said of a missing or damaged one, and the cache of built arrays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from polyfed.core.cachefolder import cache
from polyfed.core.errors import BadInput
from polyfed.data.store import File, Source, arrays, cached, reading, root, unpacked

BY_HAND = Source("toy", "toys", (File("toy.txt", ("toy.txt.gz",)),), "get toy.txt from a friend and put it")
FETCHED = Source("toy", "toys", (File("toy.txt", lesser=("toy.npz",), url="http://x/toy.txt", checksum="md5:0"),))


def test_files_are_under_polyfed_data_else_in_the_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert root() == place
    monkeypatch.delenv("POLYFED_DATA")
    assert root() == cache() == place.parent / "cache" / "polyfed"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache() == Path.home() / ".cache" / "polyfed"


def test_a_missing_file_is_a_sentence_with_the_remedy(place: Path) -> None:
    with pytest.raises(
        BadInput, match=r"needs .*toys/toy.txt, not found; get toy.txt from a friend and put it in .*toys, "
    ):
        BY_HAND.paths()
    with pytest.raises(
        BadInput, match=r"run 'polyfed data fetch toy', or set POLYFED_DATA to the folder that has toys/"
    ):
        FETCHED.paths()


def test_a_file_may_have_another_name_and_a_lesser_form_is_the_last_choice(place: Path) -> None:
    (place / "toys").mkdir(parents=True)
    (place / "toys" / "toy.txt.gz").touch()
    (place / "toys" / "toy.npz").touch()
    assert BY_HAND.paths() == [place / "toys" / "toy.txt.gz"]
    assert FETCHED.paths() == [place / "toys" / "toy.npz"]
    assert FETCHED.found(lesser=False) == [None]


@pytest.mark.parametrize("name", ["cut.gz", "cut.npz"])
def test_a_damaged_file_is_a_sentence_that_shows_nothing_of_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8b secret")
    with pytest.raises(BadInput, match=f"{name} cannot be read .*: remove it, then fetch it or copy it") as caught:
        unpacked(tmp_path / name) if name.endswith("gz") else arrays(tmp_path / name, "x")
    assert "secret" not in str(caught.value)


def test_what_a_parser_quotes_stays_unsaid(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught, reading(tmp_path / "toy.txt"):
        float("secret")
    assert "secret" not in str(caught.value)


def test_arrays_are_built_once_and_again_when_what_they_depend_on_changes(place: Path) -> None:
    place.mkdir()
    file, builds = place / "toy.txt", []

    def build(folder: Path) -> None:
        builds.append(folder)
        np.save(folder / "x.npy", np.arange(3))

    file.write_text("one")
    for _ in range(2):
        assert cached(build, "toy", [file], seed=0)["x"].tolist() == [0, 1, 2]
    assert len(builds) == 1
    cached(build, "toy", [file], seed=1)
    file.write_text("two")
    cached(build, "toy", [file], seed=0)
    assert len(builds) == 3


def test_built_arrays_are_mapped_and_torch_takes_them_without_a_warning(place: Path) -> None:
    x = cached(lambda folder: np.save(folder / "x.npy", np.arange(3)), "toy", [])["x"]
    assert isinstance(x, np.memmap)
    assert torch.from_numpy(x).sum() == 3


def test_a_build_that_fails_leaves_nothing_and_a_damaged_copy_is_built_again(place: Path) -> None:
    def fail(folder: Path) -> None:
        np.save(folder / "x.npy", np.arange(3))
        raise BadInput("no")

    with pytest.raises(BadInput, match=r"no"):
        cached(fail, "toy", [])
    folder = cache() / "built"
    assert list(folder.iterdir()) == []
    cached(lambda f: np.save(f / "x.npy", np.arange(1000)), "toy", [])
    (copy,) = folder.glob("*/x.npy")
    copy.write_bytes(copy.read_bytes()[:200])
    assert cached(lambda f: np.save(f / "x.npy", np.arange(5)), "toy", [])["x"].tolist() == [0, 1, 2, 3, 4]


def test_whoever_builds_the_same_at_the_same_time_is_left_in_peace(place: Path) -> None:
    def slow(folder: Path) -> None:
        first = cached(lambda f: np.save(f / "x.npy", np.arange(3)), "toy", [])  # another process, meanwhile
        assert len(first["x"]) == 3
        np.save(folder / "x.npy", np.arange(3))

    assert cached(slow, "toy", [])["x"].tolist() == [0, 1, 2]
    assert len(list((cache() / "built").iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_a_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    (place / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "file"))
    with pytest.raises(BadInput, match=r"cannot be used .*; free space there, or set XDG_CACHE_HOME"):
        cached(lambda f: np.save(f / "x.npy", np.arange(5)), "toy", [])


def test_data_may_be_read_only(place: Path) -> None:
    place.mkdir()
    (place / "toy.txt").write_text("one")
    os.chmod(place, 0o500)
    assert len(cached(lambda f: np.save(f / "x.npy", np.arange(5)), "toy", [place / "toy.txt"])["x"]) == 5
    os.chmod(place, 0o700)
