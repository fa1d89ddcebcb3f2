"""One learning task per owner of data, for MOCHA and its kind: Land Mine, School, Vehicle, Google Glass.

Each is one .npz with X (examples x features), y and task (the owner of each example), or one .mat with a cell of X and
of Y for each task (`matlab.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.matlab import cells
from polyfed.data.store import File, Source, arrays, stored
from polyfed.data.tables import standard


def _source(name: str, folder: str, file: str, where: str) -> Source:
    return Source(name, folder, (File(file),), f"get {where}, and save X, y and task with numpy.savez as {file}")


LANDMINE = _source(
    "landmine",
    "landmine",
    "landmine.npz",
    "LandmineData.mat (Xue et al. 2007) from github.com/daizhongxiang/Federated_Bayesian_Optimization",
)
SCHOOL = _source("school", "school", "school.npz", "data/school.mat from github.com/jiayuzhou/MALSAR")
VEHICLE = Source(
    "vehicle",
    "vehicle_sensor",
    (File("vehicle.mat", other=("vehicle.npz",), lesser=("vehicle_subset.npz",)),),
    "put vehicle.mat, whose cells X{t} and Y{t} are the rows and labels of sensor t "
    "(Duarte and Hu 2004; github.com/litian96/ditto), or save X, y and task with numpy.savez as vehicle.npz,",
)
GLASS = Source(
    "google-glass",
    "google_glass",
    (File("gleam.mat", other=("gleam.npz",)),),
    "put gleam.mat, whose cells X{t} and Y{t} are the features and labels of participant t (Rahman et al. 2015, "
    "www.skleinberg.org/data/GLEAM.tar.gz), or save X, y and task with numpy.savez as gleam.npz,",
)


@stored("landmine", LANDMINE)
def landmine(*, standardise: bool = True) -> Dataset:
    """Radar images of 29 mine fields, nine features; objective 'mine'; key 'field'.

    Args:
        standardise: features to mean 0 and variance 1 over all rows, but for columns of 0 and 1.
    """
    x, y, task = _read(LANDMINE, standardise)
    return _binary(x, y, "mine", {"field": task})


@stored("vehicle", VEHICLE)
def vehicle(*, standardise: bool = True) -> Dataset:
    """Which of two vehicles passes one of 23 sensors, 100 features; objective 'vehicle'; key 'sensor'.

    The whole set, or the part of it that the repository of Ditto has.

    Args:
        standardise: features to mean 0 and variance 1 over all rows, but for columns of 0 and 1.
    """
    x, y, task = _read(VEHICLE, standardise)
    return _binary(x, y, "vehicle", {"sensor": task})


@stored("google-glass", GLASS)
def google_glass(*, standardise: bool = True) -> Dataset:
    """Whether one of 38 people with Google Glass is eating, 180 features; objective 'eating'; key 'participant'.

    GLEAM (Rahman et al. 2015): statistics, spectra and changes of the glasses' accelerometer, gyroscope and
    magnetometer. We read the features, not the publisher's recordings: the MOCHA paper does not define them.

    Args:
        standardise: features to mean 0 and variance 1 over all rows, but for columns of 0 and 1.
    """
    x, y, task = _read(GLASS, standardise)
    return _binary(x, y, "eating", {"participant": task})


@stored("school", SCHOOL)
def school(*, standardise: bool = True) -> Dataset:
    """Examination scores of pupils of 139 London schools, 28 features; objective 'score'; key 'school'.

    Args:
        standardise: scores, and features but for columns of 0 and 1, to mean 0 and variance 1 over all rows.
    """
    x, y, task = _read(SCHOOL, standardise)
    score = standard(y) if standardise else y.astype(np.float32)
    return Dataset(x, {"score": score}, (Objective("score", "squared"),), keys={"school": task})


def _read(source: Source, standardise: bool) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.int64]]:
    """X, y and task. Standardised, a column of X has mean 0 and variance 1 over all rows; indicators stay 0 and 1,
    or those of rare things would be large numbers."""
    (path,) = source.paths()
    X, y, task = cells(path) if path.suffix == ".mat" else arrays(path, "X", "y", "task")
    x = X.astype(np.float32)
    if standardise:
        numbers = ~np.isin(X, (0, 1)).all(0)
        x[:, numbers] = standard(X[:, numbers])
    return x, y.astype(np.float64), task.astype(np.int64)


def _binary(x: NDArray[np.float32], y: NDArray[np.float64], name: str, keys: dict[str, NDArray[np.int64]]) -> Dataset:
    label = (y > 0).astype(np.int64)
    if len(np.unique(y)) > 2 or len(np.unique(label)) != len(np.unique(y)):
        found = ", ".join(f"{value:g}" for value in np.unique(y)[:4])
        raise BadInput(f"The labels of {name!r} should be two, such as -1 and 1, or 0 and 1. Found {found}.")
    return Dataset(x, {name: label}, (Objective(name, "binary"),), labels=label, keys=keys)
