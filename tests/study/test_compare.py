"""A comparison: killed and called again it does what is missing, and ends with the same table; no start-up per run."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyfed import Comparison, compare
from polyfed.cli import app
from polyfed.core.errors import BadInput
from polyfed.study.cells import Cell, locked
from polyfed.study.live import Watch
from polyfed.study.runner import Line

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "cohort": 2,
    "data": {"name": "two-digits", "clients": 4, "examples": 60},
    "model": {"name": "linear"},
    "algorithm": {"name": "fedcmoo", "lr": 0.2, "local_steps": 2, "compress": "sketch"},
}
TOML = """
rounds = 4
cohort = 2
data = { name = "two-digits", clients = 4, examples = 60 }
model = { name = "linear" }
algorithm = { name = "fedcmoo", lr = 0.2, local_steps = 2, compress = "sketch" }
"""
METHODS = "fedcmoo,fedavg,fedmgda"


def table(about: dict[str, Any]) -> str:
    """A comparison as text, without what it took and where it is."""
    text = json.dumps(about, indent=1)
    return re.sub(r'"seconds": \{.*?\}', "", text, flags=re.S)


def rounds_told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    told: list[tuple[str, int]] = []

    def note(self: Watch, cell: Cell, line: Line) -> None:
        told.append((cell.name, line["round"]))

    monkeypatch.setattr(Watch, "line", note)
    return told


def cli(*words: str) -> Any:
    return CliRunner().invoke(app, ["compare", *words])


def forked(life: Callable[[], Any]) -> int:
    """A child with a process group of its own, as a shell would make one: no second start of Python and torch."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    try:
        life()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 9)
    finally:
        os._exit(9)


def command() -> None:
    """`polyfed compare` in two processes, with rounds that last, so that there is a half-way."""
    app(["compare", "slow.toml", "--algorithms", METHODS, "--seeds", "2", "--jobs", "2", "--out", "study"])


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a tenth of a second."""
    from polyfed.core.door import Door

    begin = Door.begin

    def waits(self: Door, *arguments: Any) -> Any:
        time.sleep(0.1)
        return begin(self, *arguments)

    monkeypatch.setattr(Door, "begin", waits)


def wait_for_half_way() -> None:
    """One run is done, and another is in the second or third of its four rounds."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        rounds = [path.read_bytes().count(b"\n") for path in Path("study").glob("*/metrics.jsonl")]
        if [*Path("study").glob("*/result.json")] and {1, 2} & {*rounds}:
            return
        time.sleep(0.01)
    pytest.fail("the study never came half-way")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ended_half_way_it_does_what_is_missing_and_ends_with_the_same_table(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("slow.toml").write_text(TOML)
    whole = compare("slow.toml", algorithms=METHODS, seeds=2, jobs=1, out="whole")
    with monkeypatch.context() as patch:
        slow(patch)
        child = forked(command)
        wait_for_half_way()
        os.killpg(child, number)
        _, status = os.waitpid(child, 0)
    if number == signal.SIGKILL:
        assert os.WTERMSIG(status) == signal.SIGKILL
    else:
        assert os.WEXITSTATUS(status) == 130
        assert "the same command goes on from the checkpoints" in capfd.readouterr().err
        assert json.loads(Path("study/study.json").read_text())["state"] == "stopped"
    done = {path.parent.name for path in Path("study").glob("*/result.json")}
    assert 0 < len(done) < 6
    told = rounds_told(monkeypatch)
    again = compare("slow.toml", algorithms=METHODS, seeds=2, jobs=1, out="study")
    assert {name for name, _ in told}.isdisjoint(done)
    assert {name for name, _ in told} | done == {cell["run"] for cell in again.about["cells"]}
    if number != signal.SIGKILL:  # checkpoints of all rounds that were done
        assert len(told) < 4 * (6 - len(done))
    assert table(again.about) == table(whole.about)
    assert Path("study/study.json").read_text() == json.dumps(again.about, indent=1) + "\n"


def test_called_again_nothing_is_run_and_the_table_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compare(SMALL, algorithms=METHODS, seeds=3)
    told = rounds_told(monkeypatch)
    again = compare(SMALL, algorithms=METHODS, seeds=3, jobs=1)
    assert told == []
    assert again.about == first.about == Comparison.load("runs/compare-small").about
    assert str(again) == str(first)


def test_two_calls_may_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    compare(SMALL, algorithms="fedavg", seeds=2, jobs=1)
    told = rounds_told(monkeypatch)
    both = compare(SMALL, algorithms="fedavg,fedprox", seeds=2, jobs=1)
    assert {name.partition("-")[0] for name, _ in told} == {"fedprox"}
    assert [row["row"] for row in both.about["table"]] == ["fedavg", "fedprox"]


def test_fifteen_short_runs_have_one_start_up() -> None:
    start = time.perf_counter()
    found = compare(SMALL, algorithms="fedcmoo,fsmgda,fedavg,fedmgda+,fedprox", seeds=3, rounds=2)
    took = time.perf_counter() - start
    rounds = sum(sum(row["totals"]["seconds"]["values"]) for row in found.about["table"])
    assert len(found.runs) == 15
    assert took < 1.5 * rounds + 10  # fifteen start-ups of Python and torch take 30 s and more


def test_a_seed_of_the_experiment_is_the_first() -> None:
    found = compare({**SMALL, "seed": 5, "rounds": 1}, algorithms=["fedavg"], seeds=2, jobs=1)
    assert found.about["seeds"] == [5, 6]
    picked = compare({**SMALL, "rounds": 1}, algorithms=["fedavg"], seeds=[6, 2], jobs=1, out="picked")
    assert picked.about["seeds"] == [6, 2]
    of_six = [about["table"][0]["figures"]["left.loss"]["values"] for about in (found.about, picked.about)]
    assert of_six[0][1] == of_six[1][0]


def test_the_table_has_means_spreads_the_best_and_who_beats_whom() -> None:
    found = compare(SMALL, algorithms="fedavg", settings={"algorithm.lr": [1e-6, 0.5]}, seeds=3, jobs=1)
    slow_row, fast = found.about["table"]
    assert (slow_row["row"], fast["row"]) == ("fedavg lr=1e-06", "fedavg lr=0.5")
    cell = fast["figures"]["left.loss"]
    results = [json.loads((run / "result.json").read_text()) for run in found.runs[3:]]
    assert cell["values"] == [result["objectives"]["left"]["loss"] for result in results]
    assert cell["mean"] == pytest.approx(sum(cell["values"]) / 3)
    assert (cell["best"], slow_row["figures"]["left.loss"]["best"]) == (True, False)
    pair = next(pair for pair in found.about["tests"]["pairs"] if pair["figure"] == "left.loss")
    assert (pair["better"], pair["worse"], pair["holds"]) == ("fedavg lr=0.5", "fedavg lr=1e-06", True)
    text = str(found)
    assert "left loss: fedavg lr=0.5 beats fedavg lr=1e-06 (p" in text
    assert "paired t-test over seeds, Holm's correction" in text
    assert re.search(r"fedavg lr=0.5 .*\d ± 0.\d+ \*", text)


def test_two_seeds_are_told_that_there_is_no_test() -> None:
    found = compare({**SMALL, "rounds": 1}, algorithms="fedavg,fedprox", seeds=2, jobs=1)
    assert "No test of who beats whom: it needs 3 seeds, and there are 2." in str(found)


def test_a_failing_method_is_a_row_with_its_sentence_and_exit_code_1() -> None:
    Path("small.toml").write_text(TOML)
    words = ["small.toml", "--algorithms", "fedavg,mocha", "--seeds", "2", "--rounds", "1", "--json"]
    result = cli(*words)
    assert result.exit_code == 1
    about = json.loads(result.stdout.splitlines()[-1])
    assert [(cell["row"], cell["state"]) for cell in about["cells"]] == [
        ("fedavg", "done"), ("fedavg", "done"), ("mocha", "failed"), ("mocha", "failed"),
    ]  # fmt: skip
    assert all(cell["why"] for cell in about["cells"][2:])
    assert (about["table"][1]["runs"], about["table"][1]["figures"]["left.loss"]["mean"]) == (0, None)
    assert "mocha (0 of 2 runs)" in cli(*words[:-1]).stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--algorithms", "fedavg", "--set", "algorithm.lr=-1"], "algorithm.lr should be greater than 0"),
        (["--algorithms", "fedavg", "--set", "data.alpah=1"], "Unknown key 'data.alpah'"),
        (["--algorithms", "fedavg", "--set", "algorithm.width=8"], "None of the methods compared"),
        (["--algorithms", "fedavg", "--target", "accuracy"], "--target should be a metric and a number"),
        (["--algorithms", "fedavg", "--jobs", "0"], "--jobs should be"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_nothing(words: list[str], why: str) -> None:
    Path("small.toml").write_text(TOML)
    result = cli("small.toml", *words)
    assert result.exit_code == 2
    assert why in result.stderr
    assert not Path("runs/compare-small").exists()


def test_bad_input_leaves_an_older_study_as_it_was() -> None:
    before = compare({**SMALL, "rounds": 1}, algorithms="fedavg", seeds=1, jobs=1).about
    with pytest.raises(BadInput, match="lr should be"):
        compare({**SMALL, "rounds": 1}, algorithms="fedavg", seeds=1, jobs=1, settings={"algorithm.lr": -1})
    assert Comparison.load("runs/compare-small").about == before


def test_a_wrong_target_leaves_the_table_of_finished_runs() -> None:
    before = compare({**SMALL, "rounds": 1}, algorithms="fedavg", seeds=1, jobs=1).about
    with pytest.raises(BadInput, match="--target: no run has 'acuracy'"):
        compare({**SMALL, "rounds": 1}, algorithms="fedavg", seeds=1, jobs=1, target="acuracy=0.5")
    assert Comparison.load("runs/compare-small").about == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_metric_that_does_not_exist_is_said_after_the_first_round(jobs: int) -> None:
    with pytest.raises(BadInput, match=r"--target: no run has 'acuracy'. Did you mean 'accuracy'"):
        compare(SMALL, algorithms="fedavg,fedprox", seeds=1, jobs=jobs, target="acuracy=0.5")
    assert not [*Path("runs").glob("*/*/result.json")]


def test_a_target_of_ones_own() -> None:
    found = compare(SMALL, algorithms="fedavg", settings={"algorithm.lr": [1e-6, 0.5]}, seeds=1, jobs=1,
                    target="left.loss=2.2")  # fmt: skip
    never, soon = (row["to_target"] for row in found.about["table"])
    assert (never["reached"], never["rounds"]["mean"]) == (0, None)
    assert soon["reached"] == 1
    lines = [json.loads(line) for line in (found.runs[1] / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["losses"]["left"] <= 2.2)
    assert soon["rounds"]["mean"] == first["round"]
    assert soon["bytes_up"]["mean"] == sum(line["bytes_up"] for line in lines[: first["round"]])
    assert "until left loss is at most 2.2" in str(found)


def test_a_study_that_another_process_works_on_is_refused() -> None:
    with locked(Path("study")), pytest.raises(BadInput, match="Another process is working on the study"):
        compare(SMALL, algorithms="fedavg", out="study")


def test_folders_of_others_are_refused() -> None:
    Path("mine").mkdir()
    Path("mine/letter.txt").touch()
    with pytest.raises(BadInput, match="holds no study"):
        compare(SMALL, algorithms="fedavg", out="mine")
    assert [path.name for path in Path("mine").iterdir()] == ["letter.txt"]


def test_trackers_have_a_file_in_each_run() -> None:
    trackers = [{"name": "csv"}, {"name": "tensorboard"}]
    found = compare({**SMALL, "callbacks": trackers}, algorithms="fedavg,fedprox", seeds=2, jobs=2)
    for run in found.runs:
        with (run / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [float(row["losses/left"]) for row in rows] == [line["losses"]["left"] for line in lines]
        assert len([*(run / "tensorboard").glob("events*")]) == 1


def test_piped_it_is_plain_text_and_json_is_one_object() -> None:
    Path("small.toml").write_text(TOML)
    words = ["small.toml", "--algorithms", "fedavg,fedprox:mu=0.1", "--seeds", "1", "--rounds", "2"]
    result = cli(*words)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "┃" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == "small: 2 methods, 2 runs"
    assert any(line.startswith("fedprox mu=0.1 ") for line in lines)
    assert lines[-2] == f"study: {Path('runs/compare-small')}"
    assert re.search(r"^[12]/2 fedavg, seed 0: accuracy left", result.stderr, re.M)
    as_json = cli(*words, "--json")
    about = json.loads(as_json.stdout)
    assert about["study"] == str(Path("runs/compare-small"))
    assert {key: about[key] for key in ("table", "tests", "target")} == {
        key: Comparison.load("runs/compare-small").about[key] for key in ("table", "tests", "target")
    }


def test_the_report_is_in_the_study_or_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("small.toml").write_text(TOML)
    words = ["small.toml", "--algorithms", "fedavg,fedprox", "--seeds", "1", "--rounds", "1"]
    page = Path("runs/compare-small/report.html")
    assert cli(*words).stdout.splitlines()[-1] == f"report: {page}"
    assert "fedprox" in page.read_text()
    monkeypatch.setattr("polyfed.report.page.find_spec", lambda name: None)
    result = cli(*words)
    assert result.exit_code == 0
    assert "pip install 'polyfed[report]'" in result.stdout.splitlines()[-1]
    monkeypatch.setattr("polyfed.report.writing.page", lambda *given: 1 / 0)
    broken = cli(*words)
    assert broken.exit_code == 0
    assert "small: 2 methods, 2 runs" in broken.stdout
    assert broken.stdout.splitlines()[-1].startswith("No report (ZeroDivisionError: division by zero); 'polyfed report")


def test_schedules_of_several_models_are_compared() -> None:
    one = {"data": SMALL["data"], "model": SMALL["model"]}
    settings = {"name": "two", "rounds": 2, "cohort": 4, "algorithm": {"name": "fedavg", "lr": 0.1},
                "models": {"a": one, "b": {**one, "seed": 7}}}  # fmt: skip
    found = compare(settings, algorithms="mfa-rr,mfa-rand", seeds=1, jobs=1)
    assert [row["row"] for row in found.about["table"]] == ["mfa-rr", "mfa-rand"]
    assert "a/left.accuracy" in found.about["table"][0]["figures"]
    assert "a/left accuracy  a/right accuracy  b/left accuracy" in re.sub(" {2,}", "  ", str(found))


def test_it_shows_itself_in_a_notebook() -> None:
    found = compare({**SMALL, "rounds": 2}, algorithms="fedavg,fedprox", seeds=2, jobs=1)
    page = found._repr_html_()
    assert page.count("<tr>") == 6
    assert "<b>" in page
    assert page.count("<svg") == 1
    frame = found.to_pandas()
    assert list(frame["method"]) == ["fedavg", "fedavg", "fedprox", "fedprox"]
    assert list(frame["seed"]) == [0, 1, 0, 1]
    assert frame["left.loss"][3] == found.about["table"][1]["figures"]["left.loss"]["values"][1]
    drawn = found.plot()
    assert "accuracy" in drawn.get_suptitle()
    assert drawn.axes[0].get_xlim() == pytest.approx((-0.6, 1.6)), "both objectives fill the figure"
    assert len(found.plot("losses", "bytes_up").axes) == 2
    with pytest.raises(BadInput, match=r"has no figure 'loses'. Did you mean 'losses'"):
        found.plot("loses")


def test_runs_that_a_callback_ends_are_said_to_have_fewer_rounds() -> None:
    budget = {"name": "byte-budget", "bytes": 1}
    assert "The last evaluation of 2 rounds" in str(
        compare({**SMALL, "rounds": 2}, algorithms="fedavg", seeds=1, jobs=1)
    )
    found = compare({**SMALL, "rounds": 2, "callbacks": [budget]}, algorithms="fedavg", seeds=1, jobs=1)
    assert "The last evaluation of up to 2 rounds" in str(found)


def test_one_method_alone_is_drawn_by_its_losses() -> None:
    found = compare({**SMALL, "rounds": 2}, algorithms="fedavg", seeds=1, jobs=1)
    assert found.plot().get_suptitle().startswith("Loss")
    assert found._repr_html_().count("<svg") == 1
    shutil.rmtree(found.study)
    assert "<svg" not in found._repr_html_()  # the table is still there


def test_what_is_no_comparison_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no comparison that is complete"):
        Comparison.load(tmp_path)


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1], [-1], "3", True, [True]])
def test_seeds_are_a_number_or_different_ones(seeds: Any) -> None:
    with pytest.raises(BadInput, match="seeds should be"):
        compare(SMALL, algorithms="fedavg", seeds=seeds)


def test_the_report_is_of_the_runs_that_were_asked_for() -> None:
    Path("small.toml").write_text(TOML)
    cli("small.toml", "--algorithms", "fedmgda,fedprox", "--seeds", "1", "--rounds", "1")
    cli("small.toml", "--algorithms", "fedavg,fedprox", "--seeds", "1", "--rounds", "1")
    text = Path("runs/compare-small/report.html").read_text().rpartition("<script>")[0]
    assert "fedprox-seed0" in text
    assert "fedmgda-seed0" not in text
