"""Names as people write them: brackets, dots, escapes and slashes are shown, never obeyed."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from polyfed import FedAvg, Federation, Objective, Problem, train
from polyfed.cli import app
from polyfed.core.errors import shown, visible
from polyfed.models import Headed
from polyfed.run.display import Progress, show

NAMES = [
    "energy [kcal/mol]", "[/red]", "[red]", "a.b", "a..b.", "it's", 'say "hello"', "\x1b[31mred", "\x1b]8;;http://x\x07link",
    "keys", "shared", "weight", "a/b", "../../x", "ünïcode", ":smile:", "{}", "%s", "\u202eabc", "line\nbreak", "tab\t",
]  # fmt: skip


def trained(name: str, **more: Any) -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    model = Headed(nn.Identity(), {name: nn.Linear(3, 2)})
    federation = Federation.from_arrays(x, {name: (x[:, 0] > 0).astype(int)}, clients=3)
    return train(Problem(model, [Objective(name, "cross-entropy")]), federation, FedAvg(), rounds=1, **more).summary


@pytest.mark.parametrize("name", NAMES)
def test_any_name_trains_and_is_shown_as_it_is(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    summary = trained(name, callbacks=[Progress()])
    assert list(summary["objectives"]) == [name]
    show(summary)
    said = capsys.readouterr()
    assert visible(name) in said.out
    assert "\x1b" not in said.out
    assert "\x1b" not in said.err
    assert {path.name for path in Path().iterdir()} == {"runs"}


@pytest.mark.parametrize("name", NAMES)
def test_dots_in_a_file_and_in_a_key(name: str) -> None:
    key = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    done = CliRunner().invoke(app, ["run", "--set", f"objectives.{key}.loss=squared"])
    assert done.exit_code == 2
    assert done.stderr.startswith("polyfed: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.strip().isprintable()


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", ".hidden", "", "\x1b[31m", "x" * 200, 3, ["a"]])
def test_an_experiments_name_is_one_word_of_a_path(name: object) -> None:
    Path("e.toml").write_text(f"name = {name!r}\nrounds = 1\n".replace("'", '"').replace("\\x1b", "\\u001b"))
    done = CliRunner().invoke(app, ["run", "e.toml"])
    assert (done.exit_code, "name should be letters, digits" in done.stderr) == (2, True), done.stderr
    assert [path.name for path in Path().iterdir()] == ["e.toml"]


def test_a_file_with_an_odd_name_runs() -> None:
    Path("my [odd] file's.toml").write_text("rounds = 1\ncohort = 2\n[data]\nexamples = 60\nclients = 4\n")
    done = CliRunner().invoke(app, ["run", "my [odd] file's.toml"])
    assert done.exit_code == 0, done.stderr
    (made,) = Path("runs").iterdir()
    assert made.name.startswith("my-odd-file-s-")


def test_long_values_are_cut_and_strange_ones_are_shown() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    assert len(shown("x" * 10_000)) < 70
    assert shown(Rude()) == "<Rude>"
    assert shown("\x1b[0m") == r"'\x1b[0m'"
    assert visible("a\nb\u202e") == r"a\nb\u202e"


def test_the_bar_takes_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(
        "polyfed.run.display.Console", lambda **options: Console(file=out, force_terminal=True, width=200)
    )
    trained("[/red]", callbacks=[Progress()])
    assert "\n[/red] " in re.sub(r"\x1b\[[\d;?]*\w", "", out.getvalue())
