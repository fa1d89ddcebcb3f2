"""A study's cells: named by what they are of, so that finished ones are found and others are not taken for them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from polyfed.core.errors import BadInput
from polyfed.study.cells import check_folder, checksum, locked, make_cell, read_study, write_study

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "two-digits", "clients": 4, "examples": 60},
    "model": {"name": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.2},
}


def changed(*path: str, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(SMALL)
    node = made
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value
    return made


@pytest.mark.parametrize(
    ("path", "default"),
    [
        (("seed",), 0),
        (("data", "partition"), "iid"),
        (("data", "overlap"), 2),
        (("model", "dtype"), "float32"),
        (("algorithm", "server_lr"), 1.0),
        (("evaluate", "every"), 1),
        (("engine", "name"), "wire"),
        (("check_rows",), False),
    ],
)
def test_defaults_and_engines_make_no_other_cell(path: tuple[str, ...], default: Any) -> None:
    assert checksum(changed(*path, value=default)) == checksum(SMALL)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("rounds",), 3),
        (("seed",), 1),
        (("data", "overlap"), 3),
        (("data", "partition"), "dirichlet"),
        (("model", "name"), "mlp"),
        (("algorithm", "lr"), 0.3),
        (("algorithm", "name"), "fedprox"),
        (("evaluate", "every"), 2),
        (("guard",), "off"),
        (("callbacks",), [{"name": "early-stopping"}]),
    ],
)
def test_what_may_change_a_figure_makes_another_cell(path: tuple[str, ...], value: Any) -> None:
    assert checksum(changed(*path, value=value)) != checksum(SMALL)


def test_settings_that_cannot_be_built_have_names_too() -> None:
    wrong = [changed("algorithm", "lr", value=value) for value in (-1, "fast")]
    wrong += [changed("data", "name", value="none"), changed("model", "name", value=3)]
    assert len({checksum(one) for one in wrong}) == 4


def test_a_cell_is_called_by_plain_words() -> None:
    cell = make_cell("mine:Method lr=0.1 ../../etc <b>", 3, SMALL)
    assert cell.name == f"mine-Method-lr0.1-..-..-etc-b-seed3-{checksum({**SMALL, 'seed': 3})}"
    assert cell.settings["seed"] == 3
    assert "seed" not in SMALL
    assert len(make_cell("x" * 500, 0, SMALL).name) < 120


def test_cells_share_data_by_seed_and_table() -> None:
    a, b = make_cell("a", 0, SMALL), make_cell("b", 0, changed("algorithm", "lr", value=0.5))
    assert a.data == b.data
    assert a.data != make_cell("a", 1, SMALL).data
    assert a.data != make_cell("a", 0, changed("data", "examples", value=80)).data


def test_one_process_works_on_a_study(tmp_path: Path) -> None:
    again = locked(tmp_path / "study")
    with locked(tmp_path / "study"), pytest.raises(BadInput, match="Another process is working on the study"), again:
        pass
    with locked(tmp_path / "study"):  # the lock is gone with who held it
        pass


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written"), locked(tmp_path / "file" / "study"):
        pass


def test_a_study_is_written_whole_and_never_into_others_folders(tmp_path: Path) -> None:
    study = tmp_path / "study"
    check_folder(study, "compare")  # new
    study.mkdir()
    check_folder(study, "compare")  # empty
    write_study(study, {"kind": "compare", "n": 1})
    assert read_study(study) == {"kind": "compare", "n": 1}
    assert [path.name for path in study.iterdir()] == ["study.json"]
    check_folder(study, "compare")
    with pytest.raises(BadInput, match="a study of kind 'compare'"):
        check_folder(study, "tune")
    (study / "study.json").write_text("{")
    assert read_study(study) is None
    with pytest.raises(BadInput, match="holds no study"):
        check_folder(study, "compare")
    (study / "experiment.toml").touch()
    with pytest.raises(BadInput, match="is a run"):
        check_folder(study, "compare")
    with pytest.raises(BadInput, match="is a file"):
        check_folder(study / "study.json", "compare")
    with pytest.raises(ValueError, match="JSON"):
        write_study(study, json.loads('{"x": NaN}'))
