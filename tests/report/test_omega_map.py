"""Omega as a heat map: related tasks beside each other, above 0 whichever way a regulariser has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from made_runs import falling, made_run
from polyfed.report import Record
from polyfed.report.figures import omega
from polyfed.report.figures.omega import correlations

GROUPS = np.array([0, 1, 0, 1, 0, 1])


def related() -> np.ndarray[Any, np.dtype[np.float64]]:
    """A covariance of tasks in two groups, every other task in one."""
    same = GROUPS[:, None] == GROUPS
    return np.where(same, 0.8, -0.1) + 0.2 * np.eye(len(GROUPS))


def record_of(path: Path, matrix: Any, regulariser: str, **summary: Any) -> Record:
    settings = {"algorithm": {"name": "mocha", "regulariser": {"name": regulariser}}}
    made_run(path, falling(2), settings, summary)
    save_file({"tasks.omega": matrix, "tasks.W": np.zeros((6, 2))}, path / "model.safetensors")
    return Record.read(path)


def test_tasks_of_one_group_stand_together_under_their_names(tmp_path: Path) -> None:
    names = ["Oslo", "Rome", "Bergen", "Milan", "Tromso", "Pisa"]
    (figure,) = omega([record_of(tmp_path / "one", related(), "clustered", tasks=names)])
    assert figure.kind == "heatmap"
    assert figure.diverging
    assert figure.rows == figure.categories
    north = [name in ("Oslo", "Bergen", "Tromso") for name in figure.rows]
    assert north in ([True] * 3 + [False] * 3, [False] * 3 + [True] * 3)
    assert figure.matrix is not None
    assert figure.matrix[0, 1] == pytest.approx(0.8)
    assert figure.matrix[0, 5] < 0
    assert figure.matrix[2, 2] == 0


def test_an_omega_that_is_an_inverse_is_turned(tmp_path: Path) -> None:
    inverse = np.linalg.inv(related())
    (figure,) = omega([record_of(tmp_path / "one", inverse, "graphical")])
    assert figure.matrix is not None
    assert figure.matrix[0, 1] > 0
    assert "-Omega" in figure.notes[0]
    (other,) = omega([record_of(tmp_path / "two", inverse, "probabilistic")])
    assert other.matrix is not None
    assert other.matrix.min() < 0
    assert "-Omega" not in other.notes[0]
    assert set(figure.rows) == {f"task {i}" for i in range(6)}


def test_independent_tasks_and_runs_without_tasks_have_no_map(tmp_path: Path) -> None:
    assert omega([record_of(tmp_path / "one", np.eye(6), "independent")]) == []
    assert omega([Record.read(made_run(tmp_path / "two", falling(2)))]) == []
    broken = record_of(tmp_path / "three", related(), "clustered")
    assert broken.path is not None
    (broken.path / "model.safetensors").write_bytes(b"nonsense")
    assert omega([broken]) == []


def test_two_runs_have_a_map_each(tmp_path: Path) -> None:
    records = [record_of(tmp_path / name, related(), "clustered") for name in ("one", "two")]
    assert [figure.key for figure in omega(records)] == ["omega-one", "omega-two"]


def test_correlations_are_free_of_scale() -> None:
    scale = np.diag([1.0, 10.0, 0.1, 3.0, 2.0, 1.0])
    assert correlations(scale @ related() @ scale) == pytest.approx(correlations(related()))
