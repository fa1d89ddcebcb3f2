"""Human Activity Recognition with smartphones (Anguita et al. 2013, UCI): 30 people, six activities, at 50 Hz.

An example is a window of 128 samples of nine signals: acceleration of the body, angular velocity, and total
acceleration, along x, y and z. The publisher's archive also has 561 features of each window.
"""

from __future__ import annotations

import io
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.store import File, Source, arrays, cached, reading, stored
from polyfed.data.tables import standard

_ZIP = File(
    "UCI HAR Dataset.zip",
    lesser=("har_inertial.npz",),
    url="https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
    checksum="sha256:2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
)
HAR = Source("har", "har_smartphones", (_ZIP,))
TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)
SITTING = 3
CHUNK = 1_000  # windows described at a time: bounds the memory it takes

Floats = NDArray[np.float64]


@stored("har", HAR)
def har(
    *,
    features: Literal["computed", "published", "signals"] = "computed",
    task: Literal["activity", "sitting"] = "activity",
    test_subjects: bool = True,
) -> Dataset:
    """Activities of 30 people with a phone; objective 'activity' (six) or 'sitting' (MOCHA's: or not); key 'subject'.

    Tables are standardised over the clients' rows.

    Args:
        features: 260 'computed' from the signals (see `describe`), the 561 'published' ones (of the publisher's archive
            only), or the 'signals' themselves (9 x 128).
        task: which of the six activities it is, or whether it is 'sitting'.
        test_subjects: the nine people of the official test split are the server's test data; if false, all thirty are
            clients.
    """
    (path,) = HAR.paths()
    if features == "published" and path.suffix == ".npz":
        raise BadInput(
            f"{path} has no published features; run 'polyfed data fetch har' or set data.features = 'computed'."
        )
    made = cached(partial(_build, path), "har", [path], version=1)
    held_out = np.isin(made["subject"], TEST_SUBJECTS) & test_subjects
    order = np.argsort(held_out, kind="stable")
    train = int((~held_out).sum()) if test_subjects else None
    x = made[features][order]
    y = made["activity"][order] if task == "activity" else (made["activity"][order] == SITTING).astype(np.int64)
    return Dataset(
        x=x if features == "signals" else standard(x, train),
        targets={task: y},
        objectives=(Objective(task, "cross-entropy" if task == "activity" else "binary"),),
        train=train,
        labels=y,
        keys={"subject": made["subject"][order]},
    )


def describe(signals: NDArray[np.float32]) -> NDArray[np.float32]:
    """260 features of windows (n, 9, 128).

    Twenty each of 13 signals: the nine, the lengths of the three vectors, and the length of the change of the body's
    acceleration. In time: mean, standard deviation, median absolute deviation, least, largest, quartiles, mean
    square, mean absolute change, crossings of the mean. In frequency: the logarithm of the energy in ten bands.
    """
    vectors = signals.astype(np.float64).reshape(-1, 3, 3, 128)
    lengths = np.sqrt((vectors**2).sum(2))
    jerk = np.sqrt((np.diff(vectors[:, 0], axis=-1, prepend=vectors[:, 0, :, :1]) ** 2).sum(1, keepdims=True))
    x = np.concatenate([signals, lengths, jerk], 1)
    return np.concatenate([_in_time(x), _in_frequency(x)], -1).reshape(len(x), -1).astype(np.float32)


def _in_time(x: Floats) -> Floats:
    centred = x - x.mean(-1, keepdims=True)
    quartiles = np.quantile(x, (0.25, 0.5, 0.75), axis=-1)
    crossings = (np.diff(np.signbit(centred), axis=-1)).mean(-1)
    spread = np.median(np.abs(x - quartiles[1][..., None]), -1)
    change = np.abs(np.diff(x, axis=-1)).mean(-1)
    parts = [x.mean(-1), x.std(-1), spread, x.min(-1), x.max(-1), quartiles[0], quartiles[2], (x**2).mean(-1)]
    return np.stack([*parts, change, crossings], -1)


def _in_frequency(x: Floats) -> Floats:
    """Bands of the spectrum without the mean: 0.4 Hz wide at the bottom, wider towards 25 Hz."""
    energy = np.abs(np.fft.rfft(x, axis=-1)[..., 1:]) ** 2
    starts = (0, 1, 2, 3, 4, 6, 8, 12, 20, 36)
    return np.log(np.add.reduceat(energy, starts, axis=-1) + 1e-6)


def _build(path: Path, folder: Path) -> None:
    made = _npz(path) if path.suffix == ".npz" else _zip(path)
    x = made["signals"]
    order = np.lexsort((x[:, 3, 0], x[:, 0, 0], made["subject"]))  # one order, whichever file it comes from
    made["computed"] = np.concatenate([describe(x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)])
    for name, values in made.items():
        np.save(folder / f"{name}.npy", values[order])


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    """Our compact form: windows overlap by half, so halves are kept once."""
    halves, index, y, subject = arrays(path, "halves", "idx", "y", "subject")
    signals = halves[index].transpose(0, 2, 1, 3).reshape(-1, 9, 128)
    return {"signals": signals, "activity": y.astype(np.int64), "subject": subject.astype(np.int64)}


def _zip(path: Path) -> dict[str, NDArray[Any]]:
    """The publisher's archive: text files, one line per window."""
    names = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
    with reading(path), zipfile.ZipFile(path) as z:
        signals = [_text(z, f"Inertial Signals/{name}").reshape(-1, 128) for name in names]
        return {
            "signals": np.stack(signals, 1).astype(np.float32),
            "published": _text(z, "X").reshape(-1, 561).astype(np.float32),
            "activity": _text(z, "y").astype(np.int64) - 1,
            "subject": _text(z, "subject").astype(np.int64),
        }


def _text(z: zipfile.ZipFile, name: str) -> Floats:
    both = [z.read(f"UCI HAR Dataset/{split}/{name}_{split}.txt") for split in ("train", "test")]
    return np.concatenate([np.loadtxt(io.BytesIO(text)).ravel() for text in both])
