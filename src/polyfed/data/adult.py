"""Adult (Becker and Kohavi 1996, UCI): does a person earn more than $50,000? With 413 doctorates among 32,561."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.store import File, Source, cached, reading, stored, unpacked

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT = Source(
    "adult",
    "adult",
    (
        File(
            "adult.data",
            ("adult.data.gz",),
            url=_UCI + "adult.data",
            checksum="sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        ),
        File(
            "adult.test",
            ("adult.test.gz",),
            url=_UCI + "adult.test",
            checksum="sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        ),
    ),
)
CATEGORICAL = (1, 3, 5, 6, 7, 8, 9, 13)  # workclass, education, marital status, ..., native country
EDUCATION, SEX = 3, 9

Table = NDArray[np.str_]


@stored("adult", ADULT)
def adult() -> Dataset:
    """Census records, 99 binary features; objective 'income'; keys 'education' (16 levels) and 'doctorate' (two);
    the column 'sex' (1 for women).

    The features are the indicators of the eight categorical attributes and nothing else, as in AFL and q-FFL; an
    unknown value ("?") has no indicator set. The publisher's test file is the server's test data.
    """
    paths = ADULT.paths()
    made = cached(partial(_build, paths), "adult", paths, version=2)
    income = made["income"]
    return Dataset(
        x=made["x"],
        targets={"income": income},
        objectives=(Objective("income", "binary"),),
        train=int(made["train"][0]),
        labels=income,
        keys={"education": made["education"], "doctorate": made["doctorate"]},
        columns={"sex": made["sex"]},
    )


def _build(paths: list[Path], folder: Path) -> None:
    train, test = (_table(path) for path in paths)
    rows = np.concatenate([train, test])
    levels, education = np.unique(rows[:, EDUCATION], return_inverse=True)
    np.save(folder / "x.npy", np.concatenate([_indicators(rows[:, c], train[:, c]) for c in CATEGORICAL], 1))
    np.save(folder / "income.npy", np.char.startswith(rows[:, -1], ">50K").astype(np.int64))
    np.save(folder / "education.npy", education)
    np.save(folder / "doctorate.npy", (levels == "Doctorate")[education].astype(np.int64))
    np.save(folder / "sex.npy", (rows[:, SEX] == "Female").astype(np.int64))
    np.save(folder / "train.npy", [len(train)])


def _table(path: Path) -> Table:
    """Rows of 15 values; the test file begins with a comment."""
    content = unpacked(path)
    with reading(path):
        lines = (line for line in content.decode("ascii").split("\n") if line and not line.startswith("|"))
        return np.array([line.split(", ") for line in lines]).reshape(-1, 15)


def _indicators(column: Table, known: Table) -> NDArray[np.float32]:
    values = [value for value in np.unique(known) if value != "?"]
    return np.stack([column == value for value in values], 1).astype(np.float32)
