"""Census-Income (KDD) of UCI: 299,285 people of the US surveys of 1994 and 1995, the usual multi-task table."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.prepare import indicators
from polyfed.data.store import File, Source, arrays, cached, reading, stored, unpacked
from polyfed.data.tables import standard

CENSUS = Source(
    "census-income",
    "census_kdd",
    (
        File("census-income.data", ("census-income.data.gz", "census_kdd.npz")),
        File("census-income.test", ("census-income.test.gz", "census_kdd.npz")),
    ),
    "get census-income.data.gz and census-income.test.gz from https://archive.ics.uci.edu/dataset/117 and put them",
)
# Positions in the publisher's lines of 42 values. The instance weight says nothing of the person, so it is left out.
NUMBERS = (0, 5, 16, 17, 18, 30, 39)
EDUCATION, MARITAL, WEIGHT, INCOME = 4, 7, 24, 41
CODES = tuple(c for c in range(INCOME) if c not in (*NUMBERS, MARITAL, WEIGHT))

Column = tuple[NDArray[Any], list[str]]  # a code per row, and what the codes stand for in alphabetical order


@stored("census-income", CENSUS)
def census_income() -> Dataset:
    """People in 39 attributes, 503 features once coded; objectives 'income' (50,000 and more) and 'never-married'.

    The features are all attributes but the marital status and the instance weight: seven numbers, standardised over
    the training rows, and 32 categorical ones as indicators. Key 'education' (17 levels).
    """
    paths = CENSUS.paths()
    made = cached(partial(_build, paths), "census-income", paths, version=1)
    income, single = made["income"], made["single"]
    return Dataset(
        x=made["x"],
        targets={"income": income, "never-married": single},
        objectives=(Objective("income", "binary"), Objective("never-married", "binary")),
        train=int(made["train"][0]),
        labels=2 * income + single,
        keys={"education": made["education"]},
        prepare=partial(indicators, sizes=tuple(int(size) for size in made["sizes"])),
    )


def _build(paths: list[Path], folder: Path) -> None:
    columns, train = _npz(paths[0]) if paths[0].suffix == ".npz" else _text(paths)
    numbers = standard(np.stack([columns[c][0] for c in NUMBERS], 1), train)
    codes = np.stack([columns[c][0] for c in CODES], 1).astype(np.float32)
    marital, statuses = columns[MARITAL]
    np.save(folder / "x.npy", np.concatenate([numbers, codes], 1))
    np.save(folder / "income.npy", columns[INCOME][0].astype(np.int64))
    np.save(folder / "single.npy", (marital == statuses.index("Never married")).astype(np.int64))
    np.save(folder / "education.npy", columns[EDUCATION][0].astype(np.int64))
    np.save(folder / "sizes.npy", [len(columns[c][1]) for c in CODES])
    np.save(folder / "train.npy", [train])


def _text(paths: list[Path]) -> tuple[dict[int, Column], int]:
    """The publisher's lines; each distinct value of a column is kept once, or they would take gigabytes."""
    values: list[dict[str, int]] = [{} for _ in range(INCOME + 1)]
    parts = [_lines(path, values) for path in paths]
    rows = np.concatenate(parts)
    columns = {c: _sorted(rows[:, c], list(values[c])) for c in (*CODES, MARITAL, INCOME)}
    with reading(paths[0]):
        numbers = {c: (np.array([float(v) for v in values[c]])[rows[:, c]], list[str]()) for c in NUMBERS}
    return columns | numbers, len(parts[0])


def _lines(path: Path, values: list[dict[str, int]]) -> NDArray[np.int32]:
    content = unpacked(path)
    with reading(path):
        cells = (zip(values, line.split(","), strict=True) for line in content.decode("ascii").splitlines())
        codes = (known.setdefault(cell.strip(), len(known)) for line in cells for known, cell in line)
        return np.fromiter(codes, np.int32).reshape(-1, len(values))


def _sorted(codes: NDArray[np.int32], values: list[str]) -> Column:
    order = sorted(range(len(values)), key=values.__getitem__)
    return np.argsort(order)[codes], [values[i] for i in order]


def _npz(path: Path) -> tuple[dict[int, Column], int]:
    """Our compact form: the numbers and the codes apart, each in the publisher's order."""
    num, cat, vocabulary, income, train = arrays(path, "num", "cat", "cat_vocab", "income", "n_train")
    with reading(path):
        values = json.loads(str(vocabulary))
    numbers = {c: (num[:, j], list[str]()) for j, c in enumerate(sorted((*NUMBERS, WEIGHT)))}
    codes = {c: (cat[:, j], values[j]) for j, c in enumerate(sorted((*CODES, MARITAL)))}
    return {**numbers, **codes, INCOME: (income, list[str]())}, int(train)
