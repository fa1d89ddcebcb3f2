"""Shakespeare and Human Activity Recognition, on small files written here."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from polyfed.core.errors import BadInput
from polyfed.data import datasets
from polyfed.data.har import TEST_SUBJECTS, describe
from samples import write_har

LINE = "The quick brown fox jumps over the lazy dog, again and again.\n"


@pytest.fixture
def plays(place: Path) -> str:
    """ANNA says 5 lines in two speeches, BOB 3, and CLEO too little."""
    text = f"ANNA:\n{LINE * 2}\nBOB:\n{LINE * 3}\n\nCLEO:\nNo!\n\nANNA:\n{LINE.upper() * 3}"
    (place / "shakespeare").mkdir(parents=True)
    (place / "shakespeare" / "tinyshakespeare.txt.gz").write_bytes(gzip.compress(text.encode()))
    return text


def test_shakespeare_windows_are_a_speakers_own_words(plays: str) -> None:
    data = datasets["shakespeare"]()
    letters = "".join(sorted(set(plays)))
    rows = ["".join(letters[c] for c in [*x, y]) for x, y in zip(data.x, data.targets["character"], strict=True)]
    anna, bob = f"{LINE * 2}{LINE.upper() * 3}".strip("\n"), (LINE * 3).strip("\n")
    a, b = len(anna) * 4 // 5, len(bob) * 4 // 5
    assert rows[: data.rows] == windows(anna[:a]) + windows(bob[:b])
    assert rows[data.rows :] == windows(anna[a:]) + windows(bob[b:])
    assert (data.keys["speaker"][: data.rows] == 0).sum() == len(windows(anna[:a]))
    assert data.x.dtype == np.uint8


def windows(text: str) -> list[str]:
    return [text[i : i + 81] for i in range(len(text) - 80)]


def test_shakespeare_takes_the_wordiest_and_strides(plays: str) -> None:
    every, anna = datasets["shakespeare"](), datasets["shakespeare"](speakers=1)
    assert anna.rows == (every.keys["speaker"][: every.rows] == 0).sum()
    few = datasets["shakespeare"](stride=7, speakers=1)
    assert np.array_equal(few.x[: few.rows], anna.x[: anna.rows : 7])
    with pytest.raises(BadInput, match=r"data.speakers should be at most the 2 who say enough. Found 3"):
        datasets["shakespeare"](speakers=3)


def signals() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two windows each of four people, two of them of the official test split; the second half of one is the first
    half of the other."""
    rng = np.random.default_rng(0)
    subject = np.repeat([1, 2, 3, 4], 2)
    x = rng.normal(size=(8, 9, 128)).astype(np.float32).round(3)
    x[1::2, :, :64] = x[::2, :, 64:]
    return x, rng.integers(0, 6, 8), subject


def write_compact(path: Path) -> None:
    x, y, subject = signals()
    order = [1, 0, 3, 2, 5, 4, 7, 6]  # our file has a person's windows in another order than the publisher's
    write_har(path, x[order], y[order], subject[order])


def write_archive(path: Path) -> None:
    x, y, subject = signals()
    names = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
    tests = np.isin(subject, TEST_SUBJECTS)
    with zipfile.ZipFile(path, "w") as z:
        for split, rows in (("train", ~tests), ("test", tests)):
            tables = {f"Inertial Signals/{name}": x[rows, c] for c, name in enumerate(names)}
            tables |= {"X": np.tile(x[rows, 0, :1], 561), "y": y[rows, None] + 1, "subject": subject[rows, None]}
            for name, table in tables.items():
                text = "\n".join(" ".join(f"{v:.7e}" for v in row) for row in table)
                z.writestr(f"UCI HAR Dataset/{split}/{name}_{split}.txt", text + "\n")


@pytest.fixture
def har(place: Path) -> Path:
    folder = place / "har_smartphones"
    folder.mkdir(parents=True)
    write_compact(folder / "har_inertial.npz")
    return folder


def test_har_keeps_subjects_and_the_official_test_people_apart(har: Path) -> None:
    data = datasets["har"]()
    assert data.rows == 4
    assert data.keys["subject"].tolist() == [1, 1, 3, 3, 2, 2, 4, 4]
    assert data.x.shape == (8, 260)
    assert np.allclose(data.x[:4].mean(0), 0, atol=1e-5)
    everyone = datasets["har"](test_subjects=False, task="sitting", features="signals")
    assert everyone.train is None
    assert everyone.keys["subject"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert everyone.x.shape == (8, 9, 128)
    assert np.array_equal(everyone.targets["sitting"], sorted_activity() == 3)
    assert [o.loss for o in everyone.objectives] == ["binary"]


def sorted_activity() -> np.ndarray:
    x, y, subject = signals()
    return y[np.lexsort((x[:, 0, 0], subject))]


def test_hars_archive_gives_what_the_compact_file_gives(har: Path) -> None:
    compact = {features: datasets["har"](features=features) for features in ("computed", "signals")}
    with pytest.raises(BadInput, match=r"no published features; run 'polyfed data fetch har' or set data.features"):
        datasets["har"](features="published")
    (har / "har_inertial.npz").unlink()
    write_archive(har / "UCI HAR Dataset.zip")
    for features, before in compact.items():
        after = datasets["har"](features=features)
        assert np.array_equal(after.x, before.x)
        assert np.array_equal(after.targets["activity"], before.targets["activity"])
    assert datasets["har"](features="published").x.shape == (8, 561)


def test_described_windows() -> None:
    """A still phone and one shaken at 25/8 Hz: the features say so."""
    still = np.ones((1, 9, 128), np.float32)
    shaken = still + np.sin(2 * np.pi * 8 * np.arange(128) / 128).astype(np.float32)
    a, b = (describe(x).reshape(13, 20) for x in (still, shaken))
    mean, std, mad, least, largest, low, high, square, change, crossings = a[0, :10]
    assert (mean, std, mad, least, largest, low, high, square, change, crossings) == (1, 0, 0, 1, 1, 1, 1, 1, 0, 0)
    assert np.allclose(b[0, [0, 1, 3, 4, 7]], [1, np.sqrt(0.5), 0, 2, 1.5], atol=1e-5)
    assert b[0, 10:].argmax() == 5, "the band of frequencies 7 and 8 of 64"
    assert np.allclose(a[9, 0], np.sqrt(3)), "the length of the body's acceleration"
    assert np.allclose(a[12, :10], 0), "which does not change"
