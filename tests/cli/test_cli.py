"""The command line as a person meets it: results, and bad input as one line that says what would be right."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyfed.cli import app
from polyfed.core.registry import forget
from polyfed.experiment.reading import builtin

SMALL = ["--set", "data.examples=300", "--set", "data.clients=10", "--set", "cohort=3", "--rounds", "2"]


@pytest.fixture(autouse=True)
def _same_path_after() -> Iterator[None]:
    """Experiments' folders do not stay importable."""
    path = list(sys.path)
    yield
    sys.path[:] = path


def polyfed(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_json_is_the_last_line_and_complete() -> None:
    done = polyfed("run", *SMALL, "--json", "--out", "r")
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    keys = {"run", "algorithm", "engine", "rounds", "seed", "seconds", "bytes_up", "bytes_down", "objectives"}
    assert keys | {"model_sha256"} <= set(summary)
    assert set(summary["objectives"]) == {"left", "right"}
    assert {"loss", "accuracy"} <= set(summary["objectives"]["left"])
    assert (summary["run"], summary["rounds"], summary["engine"]) == ("r", 2, "local")


def test_a_table_for_people_and_the_path_of_the_run() -> None:
    done = polyfed("run", *SMALL)
    assert done.exit_code == 0
    assert "accuracy" in done.stdout
    (run,) = Path("runs").iterdir()
    assert str(run) in done.stdout.replace("\n", "")


@pytest.mark.parametrize(("test", "split"), [("0.0", "train"), ("0.5", "test")])
def test_the_table_and_the_summary_say_which_rows_were_measured(test: str, split: str) -> None:
    """Without test data the figures are of the training rows."""
    words = ["run", "quadratic", "--rounds", "1", "--set", f"data.test={test}", "--out", "r"]
    assert f"objective, on {split} data" in polyfed(*words).stdout
    assert json.loads(polyfed("resume", "r", "--json").stdout)["split"] == split
    assert json.loads(Path("r/metrics.jsonl").read_text().splitlines()[-1])["split"] == split


def test_the_gain_says_which_rows_were_measured() -> None:
    words = ["gain", "quadratic", "--models", "1", "--metric", "loss", "--set", "rounds=1"]
    assert polyfed(*words).stdout.startswith("loss on train data to what each model reaches alone")
    assert json.loads(polyfed(*words, "--json").stdout)["split"] == {"model": "train"}


def test_rows_that_only_nodes_have_are_not_shown() -> None:
    Path("n.toml").write_text('[data]\nname = "nodes"\nclients = 3\nshape = [4]\nobjectives = {a = 2}\n')
    done = polyfed("data", "show", "n.toml")
    assert (done.exit_code, "only the clients have the data" in done.stderr) == (2, True), done.stderr
    assert [path.name for path in Path().iterdir()] == ["n.toml"]


def test_the_resolved_experiment_runs_again_to_the_same_model() -> None:
    first = json.loads(polyfed("run", *SMALL, "--seed", "3", "--json", "--out", "a").stdout)
    settings = tomllib.loads(Path("a/experiment.toml").read_text())
    assert settings["seed"] == 3
    assert settings["algorithm"]["momentum"] == 0.0  # defaults are written down
    second = json.loads(polyfed("run", "a/experiment.toml", "--json", "--out", "b").stdout)
    assert first["model_sha256"] == second["model_sha256"]


def test_resume_of_a_finished_run_shows_it() -> None:
    polyfed("run", *SMALL, "--out", "a")
    done = polyfed("resume", "a", "--json")
    assert json.loads(done.stdout)["rounds"] == 2


def test_lists_have_a_line_of_help_each() -> None:
    kinds = json.loads(polyfed("list", "--json").stdout)
    asked = "algorithms, datasets, models, partitions, weightings, compressors, engines, experiments"
    assert set(asked.split(", ")) <= set(kinds)
    for kind, names in kinds.items():
        for name, text in names.items():
            assert len(text) > 10, (kind, name)
    assert "fedavg" in polyfed("list", "algorithms").stdout
    assert "Did you mean 'engines'" in polyfed("list", "engine").stderr


@pytest.mark.parametrize("name", sorted(builtin()))
def test_built_in_experiments_run(name: str) -> None:
    done = polyfed("run", name, "--rounds", "2", "--json")
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("file", ["own.py", "own/__init__.py"])
def test_two_experiments_may_each_have_a_file_of_the_same_name(file: str) -> None:
    text = 'rounds = 1\ncohort = 2\n[data]\nclients = 10\nexamples = 100\n[model]\nname = "own:model"\n'
    for width in (3, 5):
        path = Path(f"{width}", file)
        path.parent.mkdir(parents=True)
        path.write_text(
            "from torch import nn\nfrom polyfed import FedAvg\nfrom polyfed.algorithms import algorithms\n"
            "@algorithms('own-method')\nclass Own(FedAvg):\n    pass\n"
            "def model():\n"
            f"    return nn.Sequential(nn.Flatten(), nn.Linear(112, {width}), nn.Linear({width}, 20))\n"
        )
        Path(f"{width}/e.toml").write_text(text)
    sizes = []
    for folder in ("3", "5", "3"):
        done = polyfed("run", f"{folder}/e.toml", "--json")
        assert done.exit_code == 0, done.stderr
        sizes.append(json.loads(done.stdout.splitlines()[-1])["bytes_down"])
    assert sizes[0] == sizes[2] < sizes[1]
    forget("own")
    sys.modules.pop("own")


def test_an_own_model_and_own_data_from_a_file_beside_the_experiment() -> None:
    Path("mine.py").write_text(
        "import numpy as np\n"
        "from torch import nn\n"
        "from polyfed import Objective\n"
        "from polyfed.data import Dataset\n"
        "def data(seed: int, rows: int = 40):\n"
        "    x = np.random.default_rng(seed).normal(size=(rows, 3)).astype('float32')\n"
        "    return Dataset(x, {'y': (x.sum(1) > 0).astype(int)}, (Objective('y', 'cross-entropy'),), train=30)\n"
        "def model():\n"
        "    return nn.Linear(3, 2)\n"
    )
    Path("mine.toml").write_text(
        'rounds = 2\ncohort = 2\n[data]\nname = "mine:data"\nclients = 3\nrows = 50\n[model]\nname = "mine:model"\n'
    )
    done = polyfed("run", "mine.toml", "--json")
    assert done.exit_code == 0, done.stderr
    assert list(json.loads(done.stdout)["objectives"]) == ["y"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "algorithm.lrr=0.1"], "Unknown key 'algorithm.lrr'. Did you mean 'lr'?"),
        (["--set", "data.client=5"], "Unknown key 'data.client'. Did you mean 'clients'?"),
        (["--set", "round=5"], "Unknown key 'round'. Did you mean 'rounds'?"),
        (["--set", "engine.wrokers=2"], "Unknown key 'engine.wrokers'. Did you mean 'workers'?"),
        (["--set", "model.widht=2"], "Unknown key 'model.widht'"),
        (["--set", "evaluate.evry=2"], "Unknown key 'evaluate.evry'. Did you mean 'every'?"),
        (["--set", "algorithm.local_steps=many"], "algorithm.local_steps should be a valid integer"),
        (["--set", "algorithm=3"], "algorithm should be a"),
        (["--rounds", "0"], "rounds should be greater than or equal to 1. Found 0."),
        (["--set", "algorithm.lr=nan"], "algorithm.lr should be"),
        (["--set", "algorithm.lr=-0.5"], "Found -0.5."),
        (["--set", "algorithm.lr=0"], "algorithm.lr should be greater than 0"),
        (["--set", "algorithm.momentum=1.5"], "algorithm.momentum should be less than 1. Found 1.5."),
        (["--set", "algorithm.local_steps=0"], "local_steps or local_epochs should be at least 1"),
        (["--set", "cohort=500"], "cohort should be at most the number of clients, 100. Found 500."),
        (["--set", "cohort=0.0"], "cohort should be"),
        (["--set", "data.clients=1000000"], "data.clients should be at most the number of rows"),
        (["--set", "algorithm.name=fedagv"], "Unknown algorithm 'fedagv'. Did you mean 'fedavg'?"),
        (["--set", "algorithm.name=5"], "algorithm.name should be a name, as 'polyfed list' shows them. Found 5."),
        (["--set", "data.name=tow-digits"], "Unknown dataset 'tow-digits'. Did you mean 'two-digits'?"),
        (["--set", "model.name=nowhere.at.all:f"], "cannot be imported"),
        (["--set", "data.partition=dirichelt"], "Did you mean 'dirichlet'?"),
        (["--set", "data.alpha=-1"], "data.alpha should be greater than 0. Found -1."),
        (["--engine", "locl"], "Unknown engine 'locl'. Did you mean 'local'?"),
        (["--set", "engine.workers=0"], "engine.workers should be greater than or equal to 1. Found 0."),
        (["--set", "nonsense"], "--set needs KEY=VALUE"),
        (["--set", "data.name.of=3"], "'name' is a value, not a table"),
        (["--set", "model.name=conv", "--set", "data.name=quadratic", "--set", "data.partition=iid"], "model"),
        (["--seed", "-1"], "seed should be greater than or equal to 0"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str) -> None:
    base = "bare.toml"
    Path(base).write_text('[data]\nname = "two-digits"\npartition = "dirichlet"\n')
    done = polyfed("run", base, *arguments, "--out", "out")
    assert done.exit_code == 2, (done.stdout, done.stderr, done.exception)
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("out").exists()
    assert list(Path().iterdir()) == [Path(base)]


def test_files_that_are_no_experiment() -> None:
    Path("broken.toml").write_text("rounds = 5\ncohort = = 3\n")
    Path("binary.toml").write_bytes(b"\xff\xfe\x00\x01" * 10)
    Path("folder").mkdir()
    for what, says in {
        "broken.toml": "line 2",
        "binary.toml": "is not text",
        "folder": "is a directory",
        "two-digit": "Did you mean 'two-digits'?",
    }.items():
        done = polyfed("run", what, "--out", "out")
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr
        assert says in done.stderr
        assert not Path("out").exists()


def test_an_out_that_is_taken_is_refused() -> None:
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("mine")
    Path("file").write_text("mine")
    polyfed("run", *SMALL, "--out", "run")
    before = Path("run/result.json").read_bytes()
    for out, says in {"full": "exists and is not a run", "file": "is a file", "run": "polyfed resume run"}.items():
        done = polyfed("run", *SMALL, "--out", out)
        assert done.exit_code == 2
        assert says in done.stderr
    assert Path("full/thesis.tex").read_text() == "mine"
    assert Path("run/result.json").read_bytes() == before
    Path("empty").mkdir()
    assert polyfed("run", *SMALL, "--out", "empty").exit_code == 0


def test_resume_of_what_is_no_run() -> None:
    assert "is not a run" in polyfed("resume", "nowhere").stderr
    from polyfed import FedAvg, train
    from small import small_federation, small_problem

    train(small_problem(), small_federation(), FedAvg(), rounds=1, out="py")
    Path("py/result.json").unlink()
    done = polyfed("resume", "py")
    assert (done.exit_code, "resume=True" in done.stderr) == (2, True)


def test_sentences_on_the_command_line() -> None:
    Path("readonly").write_text("a file where a folder should be")
    done = polyfed("run", "--rounds", "1", "--out", "readonly/run")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr
    Path("flat.toml").write_text('engine = "local"\n')
    assert "engine should be" in polyfed("run", "flat.toml").stderr
    assert polyfed("run", "flat.toml", "--engine", "wire", "--rounds", "1", "--out", "ok").exit_code == 0
    Path("broken").mkdir()
    Path("broken/experiment.toml").write_text("= = =")
    assert "is broken" in polyfed("resume", "broken").stderr
    for wrong in ("rounds=true", 'rounds="3"', "algorithm.lr=true", "cohort=1.0"):
        done = polyfed("run", "--set", wrong, "--out", "never")
        assert done.exit_code == 2, wrong


def test_a_run_with_its_own_model_resumes_from_anywhere(tmp_path: Path) -> None:
    Path("own").mkdir()
    Path("own/own_model.py").write_text(
        "from torch import nn\n\n\ndef model(**settings):\n    return nn.Sequential(nn.Flatten(), nn.Linear(112, 10))\n"
    )
    Path("own/e.toml").write_text(
        "rounds = 2\n[data]\nexamples = 200\nclients = 10\n"
        '[model]\nname = "own_model:model"\nwidth = 3\n[algorithm]\nname = "fedavg"\n'
    )
    command = [sys.executable, "-m", "polyfed"]
    assert subprocess.run([*command, "run", "own/e.toml", "--out", "run"], capture_output=True).returncode == 0
    Path("run/result.json").unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = [*command, "resume", str(tmp_path / "run")]
    refused = subprocess.run(again, cwd=elsewhere, capture_output=True, text=True)
    assert (refused.returncode, "add --allow-code own_model (each time" in refused.stderr) == (2, True), refused.stderr
    done = subprocess.run([*again, "--allow-code", "own_model"], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_does_not_import_torch() -> None:
    code = "import sys, polyfed.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert "run" in polyfed("--help").stdout
