"""The grid of a comparison: a key for those methods that have it, commas for values, one model or several."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.core.errors import BadInput
from polyfed.experiment.reading import read
from polyfed.study.grid import Choice, Grid, as_text, make_grid, read_choices, read_settings, split


def grid(algorithms: Any, given: Any = (), experiment: str = "two-digits", seeds: tuple[int, ...] = (0,)) -> Grid:
    _, settings = read(experiment)
    return make_grid(settings, read_choices(algorithms), read_settings(given), seeds)


def lr(made: Grid) -> dict[str, Any]:
    return {cell.row: cell.settings["algorithm"].get("lr") for cell in made.cells}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.1,0.3", ["0.1", "0.3"]),
        ("[1, 2]", ["[1, 2]"]),
        ("[1, 2],[3]", ["[1, 2]", "[3]"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("{rule = 'x', c = 1}, 0.1", ["{rule = 'x', c = 1}", "0.1"]),
        ("sketch, exact", ["sketch", "exact"]),
        ("", []),
    ],
)
def test_commas_part_values_and_not_lists_or_texts(text: str, words: list[str]) -> None:
    assert split(text) == words


def test_a_key_is_for_the_methods_that_have_it() -> None:
    made = grid("fedcmoo,fedavg", ["algorithm.compress=sketch,exact"])
    assert [cell.row for cell in made.cells] == ["fedcmoo compress=sketch", "fedcmoo compress=exact", "fedavg"]
    assert [cell.settings["algorithm"].get("compress") for cell in made.cells] == ["sketch", "exact", None]


def test_a_key_that_none_has_is_refused() -> None:
    with pytest.raises(BadInput, match=r"None of the methods compared \(fedavg, fmgda\) has 'algorithm.muh'"):
        grid("fedavg,fmgda", ["algorithm.muh=0.1"])


def test_all_combinations_and_all_seeds() -> None:
    made = grid("fedavg", ["algorithm.lr=0.1,0.3", "data.alpha=0.1,0.5"], seeds=(4, 5))
    assert len(made.cells) == 8
    assert [cell.row for cell in made.cells[::2]] == [
        "fedavg lr=0.1 alpha=0.1", "fedavg lr=0.1 alpha=0.5", "fedavg lr=0.3 alpha=0.1", "fedavg lr=0.3 alpha=0.5",
    ]  # fmt: skip
    assert [cell.settings["seed"] for cell in made.cells] == [4, 5] * 4
    assert made.rows["fedavg lr=0.1 alpha=0.5"] == {
        "algorithm.name": "fedavg", "algorithm.lr": 0.1, "data.alpha": 0.5,
    }  # fmt: skip


def test_one_value_is_set_and_not_named() -> None:
    made = grid("fedavg", ["algorithm.lr=0.7", "cohort=5"])
    assert lr(made) == {"fedavg": 0.7}
    assert made.cells[0].settings["cohort"] == 5


def test_what_a_method_has_of_the_experiments_is_kept_and_the_rest_said_once() -> None:
    made = grid("fedcmoo,fedavg", ["algorithm.lr=0.1,0.2"])
    tables = {cell.row: cell.settings["algorithm"] for cell in made.cells}
    assert tables["fedavg lr=0.1"] == {
        "name": "fedavg", "lr": 0.1, "server_lr": 1.2, "local_steps": 10, "batch_size": 32,
    }  # fmt: skip
    assert tables["fedcmoo lr=0.2"]["compress"] == "sketch"
    assert made.notes == ["Left out, because fedavg does not have them: algorithm.compress, algorithm.width."]


def test_a_method_may_bring_settings_of_its_own() -> None:
    made = grid("fedprox:mu=0.1,fedprox:mu=1:lr=0.2,fedavg")
    assert lr(made) == {"fedprox mu=0.1": 0.3, "fedprox mu=1 lr=0.2": 0.2, "fedavg": 0.3}
    assert read_choices("mine:Method:lr=0.1") == [Choice("mine:Method", ("lr=0.1",))]
    same = grid([{"name": "fedprox", "mu": 0.1}, "fedavg"])
    assert [cell.row for cell in same.cells] == ["fedprox mu=0.1", "fedavg"]
    assert same.cells[0].name == made.cells[0].name


def test_pythons_settings_are_the_texts() -> None:
    texts = grid("fedavg", ["algorithm.lr=0.1,0.3", "model.hidden=[8, 4]", "data.partition=iid"])
    values = {"algorithm.lr": [0.1, 0.3], "model.hidden": [[8, 4]], "data.partition": "iid"}
    assert [c.name for c in grid("fedavg", values).cells] == [c.name for c in texts.cells]
    assert as_text({"a": [1, {"b": "x"}]}) == '{"a" = [1, {"b" = "x"}]}'


def test_keys_of_one_last_word_are_told_apart() -> None:
    made = grid("fedprox", ["algorithm.lr=0.1,0.2", "evaluate.personalise.lr=0.1,0.2"])
    assert made.cells[0].row == "fedprox algorithm.lr=0.1 evaluate.personalise.lr=0.1"


@pytest.mark.parametrize(
    ("algorithms", "given", "why"),
    [
        ("fedagv", (), "Did you mean 'fedavg'"),
        ("", (), "Found none"),
        ("fedavg,fedavg", (), "'fedavg' twice"),
        ("fedavg", ["algorithm.lr=0.1,0.1"], "'fedavg lr=0.1' twice"),
        ("fedavg", ["algorithm.lr=0.1", "algorithm.lr=0.2"], "given twice"),
        ("fedavg", ["algorithm.lr"], "needs KEY=VALUE"),
        ("fedavg", ["algorithm.name=fedprox"], "named by --algorithms"),
        ("fedavg", ["algorithm=fedprox"], "named by --algorithms"),
        ("fedprox:mu=0.1,fedavg", ["algorithm.mu=0.2,0.3"], "--algorithms sets it for fedprox already"),
        ("fedavg", ["seed=1"], "--seeds"),
        ("mfa-rr", (), "is a schedule"),
        (["fedavg", 3], (), "should be a name"),
        (5, (), "should be a list"),
    ],
)
def test_what_makes_no_sense_is_refused(algorithms: Any, given: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        grid(algorithms, given)


def test_trackers_that_would_share_a_file_are_refused() -> None:
    _, settings = read("two-digits")
    for table in ({"name": "csv", "file": "/tmp/all.csv"}, {"name": "tensorboard", "folder": "/tmp/all"}):
        with pytest.raises(BadInput, match="in each run's directory"):
            make_grid({**settings, "callbacks": [table]}, [Choice("fedavg")], [], [0])


def test_schedules_of_several_models() -> None:
    made = grid("mfa-rr,mfa-rand", ["models.digits.algorithm.lr=0.1"], "many-models")
    assert [cell.settings["schedule"]["name"] for cell in made.cells] == ["mfa-rr", "mfa-rand"]
    assert all(cell.settings["models"]["digits"]["algorithm"]["lr"] == 0.1 for cell in made.cells)
    assert made.rows["mfa-rand"]["schedule.name"] == "mfa-rand"


def test_a_method_of_several_models_is_all_models() -> None:
    made = grid("fedavg,fedprox", ["algorithm.lr=0.05"], "many-models")
    methods = [{table["algorithm"]["name"] for table in cell.settings["models"].values()} for cell in made.cells]
    assert methods == [{"fedavg"}, {"fedprox"}]
    assert all(cell.settings["algorithm"]["lr"] == 0.05 for cell in made.cells)
