"""`polyfed reproduce`: what is listed, run, stopped in time, and merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from made_papers import use_made_papers
from polyfed.cli import app


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_made_papers(tmp_path / "papers", monkeypatch)


def cli(*words: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *words])


def states() -> dict[str, str]:
    return {one["item"]: one["state"] for one in json.loads(cli("--json").stdout)}


def test_everything_is_listed_with_claim_state_times_and_command() -> None:
    shown = cli().stdout
    for words in ("toy-paper/fig1", "Powers rise with n.", "not run", "12 s", "polyfed reproduce toy-paper/table1"):
        assert words in shown
    assert states() == {"toy-paper/fig1": "not run", "toy-paper/table1": "not run"}


def test_absent_data_are_a_state(toy: Path, place: Path) -> None:
    text = (
        (toy / "table1.toml").read_text().replace('"quadratic", clients = 4, examples = 8', '"multimnist", clients = 4')
    )
    (toy / "table1.toml").write_text(text)
    assert states()["toy-paper/table1"] == "data not here"
    done = cli("toy-paper/table1", "--quick")
    assert done.exit_code == 2
    assert "which is not here" in done.stderr
    everything = cli("all", "--quick", "--jobs", "1")
    assert everything.exit_code == 1  # the others were run
    assert "\ntoy-paper/table1 needs the data set" in everything.stderr
    assert "**seen**: Powers rise with n." in everything.stdout
    assert not place.exists()


def test_an_item_is_run_and_its_state_follows() -> None:
    done = cli("toy-paper/table1", "--quick", "--jobs", "1")
    assert done.exit_code == 0, done.stderr
    assert "| large | 0.5 ± 0.1 |" in done.stdout
    folder = Path("runs/reproduce/toy-paper/table1-quick")
    assert {"page.md", "record.json", "table1.svg"} <= {path.name for path in folder.iterdir()}
    assert states()["toy-paper/table1"] == "in part"
    assert "in part (quick)" in cli().stdout
    again = cli("toy-paper/table1", "--quick", "--jobs", "1", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["items"][0]["item"] == "toy-paper/table1"
    assert again.stderr.count("done before") == 12


def test_no_time_packs_what_there_is_and_merge_takes_it_over() -> None:
    assert cli("toy-paper/fig1", "--jobs", "1").exit_code == 0
    done = cli("toy-paper", "--jobs", "1", "--minutes", "0", "--pack", "mine.zip")
    assert done.exit_code == 0, done.stderr
    assert "pack: mine.zip" in done.stderr
    merged = cli("--merge", "mine.zip", "--out", "elsewhere", "--json")
    assert "9 cells taken over, 0 known already" in merged.stderr
    later = cli("toy-paper/fig1", "--jobs", "1", "--out", "elsewhere", "--minutes", "0")
    assert "**seen**: Powers rise with n." in later.stdout


def test_settings_of_a_person_count_most() -> None:
    done = cli("toy-paper/table1", "--quick", "--jobs", "1", "--set", "rounds=1")
    assert "1 rounds" in done.stdout
    assert "`polyfed reproduce toy-paper/table1 --quick --set rounds=1`" in done.stdout
    bad = cli("toy-paper/table1", "--quick", "--jobs", "1", "--set", "algorithm.lrr=1")
    assert (bad.exit_code, "Unknown key" in bad.stderr) == (2, True)
    assert states()["toy-paper/table1"] == "not run"  # what was run is another experiment
    for words in (["--set", "rounds=1"], ["--quick"], [""], ["/"]):  # an empty name is not everything
        assert (cli(*words).exit_code, "Name what is to be run" in cli(*words).stderr) == (2, True)
    assert "no such file" in cli("--merge", "nothing.zip").stderr
    assert cli("toy-paper/nothing").exit_code == 2
