"""Files are data: what an experiment names runs from its own folder, and from packages that somebody has allowed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyfed.cli import app
from polyfed.core.code import CodeRule, check_code, hold_to, trusted
from polyfed.core.errors import BadInput
from polyfed.core.registry import forget

SMALL = "rounds = 1\ncohort = 2\n[data]\nclients = 10\nexamples = 100\n"
MODEL = (
    "from pathlib import Path\nfrom torch import nn\nPath('ran').touch()\n"
    "def model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(112, 20))\n"
)


@pytest.fixture(autouse=True)
def _same_modules_after() -> Iterator[None]:
    path, before = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("code_of_"):
            forget(name)
            del sys.modules[name]


def polyfed(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def written(model: str, file: str = "e.toml") -> str:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text(f'{SMALL}[model]\nname = "{model}"\n')
    return file


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:eval", "__main__:x", "subprocess:run", "sys:exit", "torch:load"]
)
@pytest.mark.parametrize("command", ["run", "data show", "gain", "delta-m", "flower init app --experiment"])
def test_code_of_others_is_refused_before_it_is_imported(command: str, name: str) -> None:
    key = "data" if command == "data show" else "model"
    Path("e.toml").write_text(f'rounds = 1\ncohort = 2\n[{key}]\nname = "{name}"\n')
    done = polyfed(*command.split(), "e.toml")
    assert (done.exit_code, f"add --allow-code {name.partition(':')[0]}." in done.stderr) == (2, True), done.stderr
    assert [path.name for path in Path().iterdir()] == ["e.toml"]


@pytest.mark.parametrize("key", ["algorithm.weighting", "algorithm.compress", "algorithm.name", "engine.name"])
def test_wherever_it_is_named(key: str) -> None:
    done = polyfed("run", "--set", f"{key}=os:system")
    assert (done.exit_code, "add --allow-code os." in done.stderr) == (2, True), done.stderr


def test_an_installed_package_runs_when_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed/code_of_lab.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    refused = polyfed("run", written("code_of_lab:model"))
    assert (refused.exit_code, "add --allow-code code_of_lab." in refused.stderr) == (2, True)
    assert not Path("ran").exists()
    assert "code_of_lab" not in sys.modules
    assert polyfed("run", "e.toml", "--allow-code", "os").exit_code == 2
    done = polyfed("run", "e.toml", "--allow-code", "os", "--allow-code", "code_of_lab", "--out", "r")
    assert done.exit_code == 0, done.stderr
    assert Path("ran").exists()
    forget("code_of_lab")
    Path("r/result.json").unlink()
    again = polyfed("resume", "r")
    assert (again.exit_code, "each time: a run's directory does not say" in again.stderr) == (2, True), again.stderr
    assert polyfed("resume", "r", "--allow-code", "code_of_lab").exit_code == 0


def test_code_beside_the_experiment_runs_and_is_named_once() -> None:
    Path("code_of_mine.py").write_text(MODEL)
    done = polyfed("run", written("code_of_mine:model"), "--out", "r")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("note: the code in") == 1
    assert "'code_of_mine:model'" in done.stderr
    forget("code_of_mine")
    Path("r/result.json").unlink()
    assert polyfed("resume", "r").exit_code == 0  # the folder is above the run


def test_a_file_beside_the_experiment_that_nobody_names_is_never_run() -> None:
    for name in ("torchjd", "code_of_stray", "cProfile", "polyfed"):
        Path(f"{name}.py").write_text("raise SystemExit('ran')\n")
    done = polyfed("run", written("linear"), "--set", "algorithm.weighting=upgrad")
    assert done.exit_code == 0, done.stderr
    assert str(Path.cwd()) not in sys.path


def test_code_beside_the_experiment_takes_no_installed_modules_place() -> None:
    """Its folder goes to the end of the path: what Python has not imported yet is still Python's own."""
    Path("code_of_honest.py").write_text(f"import this_is_beside, cProfile\n{MODEL}")
    Path("this_is_beside.py").touch()
    Path("cProfile.py").write_text("raise SystemExit('ran')\n")
    sys.modules.pop("cProfile", None)
    done = polyfed("run", written("code_of_honest:model"))
    assert done.exit_code == 0, done.stderr
    assert str(Path.cwd()) in sys.path
    assert Path(str(sys.modules["cProfile"].__file__)).parent != Path.cwd()
    del sys.modules["this_is_beside"]


def test_of_two_experiments_folders_the_newest_comes_first(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code_of_two.py").write_text(MODEL)
        hold_to(CodeRule((str(tmp_path / name),)))
        check_code("code_of_two:model", "model")
    assert [one for one in sys.path if one.startswith(str(tmp_path))] == [str(tmp_path / "b"), str(tmp_path / "a")]


@pytest.mark.parametrize("module", ["os", "subprocess", "polyfed"])
def test_a_file_cannot_lend_its_place_to_pythons_own(module: str) -> None:
    Path(f"{module}.py").write_text(MODEL)
    done = polyfed("run", written(f"{module}:system"))
    assert (done.exit_code, f"Python has another module '{module}'; rename" in done.stderr) == (2, True), done.stderr
    assert str(Path.cwd()) not in sys.path


def test_a_folder_without_code_cannot_lend_its_name() -> None:
    Path("telnetlib").mkdir()  # a namespace package here, and in Python's own path perhaps a module
    Path("sndhdr").mkdir()
    Path("fractions").mkdir()
    done = polyfed("run", written("fractions:Fraction"))
    assert (done.exit_code, "rename" in done.stderr) == (2, True), done.stderr


def test_a_run_cannot_name_pythons_own_folder_as_its_experiments() -> None:
    assert polyfed("run", written("linear"), "--out", "r").exit_code == 0
    Path("r/result.json").unlink()
    Path("r/started.toml").unlink()
    text = Path("r/experiment.toml").read_text().replace('name = "linear"', 'name = "subprocess:getoutput"')
    folder = str(Path(sys.modules["subprocess"].__file__ or "").parent)
    Path("r/experiment.toml").write_text(
        "\n".join(f'folder = "{folder}"' if line.startswith("folder =") else line for line in text.splitlines())
    )
    for done in (polyfed("resume", "r"), polyfed("run", "r/experiment.toml", "--out", "s")):
        assert (done.exit_code, "add --allow-code subprocess" in done.stderr) == (2, True), done.stderr


def test_a_module_that_fails_is_a_sentence() -> None:
    Path("code_of_broken.py").write_text("1 / 0\n")
    done = polyfed("run", written("code_of_broken:model"))
    assert (done.exit_code, "cannot be imported (ZeroDivisionError: division by zero)" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["", ".os:system", "no_such_module:x", "a\0b:c", "x" * 5000 + ":y", "..:", ":", ":x"])
def test_names_that_are_no_module(name: str) -> None:
    hold_to(CodeRule())
    with pytest.raises(BadInput, match="cannot be imported") as found:
        check_code(name, "model")
    assert len(str(found.value)) <= 400


def test_python_is_not_concerned() -> None:
    hold_to(CodeRule())
    with trusted():
        check_code("os:system", "model")
    with pytest.raises(BadInput, match="allow-code os"):
        check_code("os:system", "model")
    hold_to(None)
    check_code("os:system", "model")


@pytest.mark.parametrize("word", ["", "a b", "../x", "a:b", "-x"])
def test_what_is_allowed_is_a_package(word: str) -> None:
    done = polyfed("run", f"--allow-code={word}")
    assert (done.exit_code, "--allow-code should be the name of a package" in done.stderr) == (2, True), done.stderr
