"""What the documents say is run: Python, experiments and commands; links lead somewhere; every name has its page."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import tomli_w
from typer.testing import CliRunner

import polyfed
from polyfed import FedCMOO, train
from polyfed.core.registry import forget
from polyfed.experiment.catalogue import page, registries
from polyfed.experiment.reading import builtin
from polyfed.testing import check_engine
from small import small_federation, small_problem

ROOT = Path(__file__).parents[1]
SITE, BLOB = "https://polyfed.github.io/polyfed/", "https://github.com/polyfed/polyfed/blob/main/"
MADE = ("_build", "catalogue")  # by Sphinx, from the registries
WRITTEN = [path for path in (ROOT / "docs").rglob("*.md") if path.relative_to(ROOT / "docs").parts[0] not in MADE]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(WRITTEN)]
LANGUAGES = {"python", "toml", "bash", "text"}  # text is output, or a picture


class Block(NamedTuple):
    """A fenced block of a page: the first line's word, and what is inside."""

    language: str
    code: str


def blocks(path: Path, *languages: str) -> list[Block]:
    found = re.findall(r"^(```+)([^\n]*)\n(.*?)^\1 *$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    made = [Block(head.strip(), code) for _, head, code in found]
    return [block for block in made if not languages or block.language in languages]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def having(*languages: str) -> pytest.MarkDecorator:
    """Pages that have blocks of a kind."""
    return pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, *languages)], ids=named)


# blocks


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_block_is_run_or_marked_as_output(path: Path) -> None:
    for language, code in blocks(path):
        known = language in LANGUAGES or re.match(r"\{[\w:-]+\}", language)
        assert known, f"{language or 'no language'}: {code.splitlines()[0]}"


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "python") and p.name != "CONTRIBUTING.md"], ids=named)
def test_python_runs_as_written(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CONTRIBUTING's blocks are files of their own: `guide`, below, imports them."""
    space = ModuleType("a_page")
    sys.modules["a_page"] = space  # classes of a page look for their module
    try:
        for _, code in blocks(path, "python"):
            exec(compile(code, named(path), "exec"), vars(space))
    finally:
        del sys.modules["a_page"]
        forget("a_page")
    assert capsys.readouterr().out or "print(" not in "".join(code for _, code in blocks(path, "python"))


@having("toml")
def test_experiments_run(path: Path) -> None:
    from polyfed.cli import app

    Path("mine.py").write_text("\n\n".join(code for _, code in blocks(ROOT / "CONTRIBUTING.md", "python")[:2]))
    for i, (_, text) in enumerate(blocks(path, "toml")):
        experiment = tomllib.loads(text)
        if "data" not in experiment and "models" not in experiment:  # a part of one
            experiment = {**tomllib.loads(builtin()["two-digits"].read_text()), **experiment}
        Path(f"{i}.toml").write_text(tomli_w.dumps(experiment))
        words = ["run", f"{i}.toml", "--rounds", "2"]
        if experiment["data"]["name"] == "nodes":  # whose rows only a deployment's clients have
            words = ["flower", "init", f"app-{i}", "--experiment", f"{i}.toml"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{text}\n{done.stderr}"
    forget("mine")
    sys.modules.pop("mine", None)


@having("bash")
def test_commands_run(path: Path) -> None:
    shutil.copytree(ROOT / "experiments", "experiments")
    text = "".join(code for _, code in blocks(path, "bash")).replace("\\\n", " ")
    if path.name == "CONTRIBUTING.md":
        Path("mine.py").write_text("\n\n".join(code for _, code in blocks(path, "python")[:2]))
        Path("mine.toml").write_text(blocks(path, "toml")[0].code)
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            run_command(words)
    forget("mine")
    sys.modules.pop("mine", None)


def run_command(words: list[str]) -> None:
    """A command of a page: ours is run, for fewer rounds; of others, what they name must be there."""
    from polyfed.cli import app

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    match words:
        case ["polyfed", *rest]:
            fewer = {"run": ["--rounds", "2"], "gain": ["--set", "rounds=2", "--seeds", "1"]}.get(rest[0], [])
            if "ray" in rest:  # tests/deploy/test_ray.py starts one
                fewer, rest = [*fewer, "--engine", "local"], [w for w in rest if "engine." not in w and w != "--set"]
            within_reach = [word for word in rest if not word.startswith("--target=")]
            done = CliRunner().invoke(app, [*within_reach, *fewer])
            missing = done.exit_code == 2 and "POLYFED_DATA" in done.stderr
            assert done.exit_code == 0 or missing, f"{' '.join(words)}\n{done.stderr}"
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        case ["pip", "install", what]:
            extras = re.findall(r"\[(.*)\]", what)
            assert all(extra in project["optional-dependencies"] for extra in extras), what
        case ["python", script, *_]:
            assert (ROOT / script).is_file(), script
        case _:
            pytest.fail(f"nobody runs {words}; mark it as text")


# links and names


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks/README.md"], ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"^(```+).*?^\1 *$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose)):
        file, _, anchor = target.partition("#")
        if file.startswith(SITE):
            wanted = ROOT / "docs" / file.removeprefix(SITE).replace(".html", ".md")
        elif file.startswith(BLOB):
            wanted = ROOT / file.removeprefix(BLOB)
        elif file.startswith("http"):
            continue
        else:
            assert path.parent != ROOT or not file, f"{path.name} is shown elsewhere, too: link to {target} absolutely"
            wanted = path.parent / file if file else path
        wanted = Path(*[{"tour.ipynb": "../examples/tour.ipynb"}.get(part, part) for part in wanted.parts])
        assert wanted.exists() or "catalogue" in wanted.parts, f"{named(path)}: {target}"
        if anchor and wanted.suffix == ".md":
            assert anchor in anchors(wanted), f"{named(path)}: {target}"


def anchors(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    for included in re.findall(r"```\{include\} (\S+)", text):
        text += (path.parent / included).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_name_has_a_page(tmp_path: Path) -> None:
    made = catalogue(tmp_path)
    for kind, registry in registries().items():
        for name in registry:
            if not registry[name].__module__.startswith("polyfed."):
                continue  # another test's
            wanted = f"{page(kind, name)}.md"
            found = made / wanted if (made / wanted).is_file() else ROOT / "docs" / wanted
            assert found.is_file(), f"{kind} {name}: there is no docs/{wanted}"
            assert f"{{settings}} {kind} {name}\n" in found.read_text(encoding="utf-8"), f"{wanted} has no settings"


def catalogue(folder: Path) -> Path:
    """The pages that Sphinx makes from the registries."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        module = importlib.import_module("polyfed_catalogue")
    finally:
        sys.path.remove(str(ROOT / "docs" / "_ext"))
    (folder / "docs").mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples")
    module.write_pages(SimpleNamespace(srcdir=folder / "docs"))
    return folder / "docs"


def test_every_method_page_has_its_parts() -> None:
    for kind in ("algorithms", "schedules"):
        for name in registries()[kind]:
            if not registries()[kind][name].__module__.startswith("polyfed."):
                continue
            text = (ROOT / "docs" / f"{page(kind, name)}.md").read_text(encoding="utf-8")
            headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
            wanted = ["The method", "Example", "What it costs", "Printed, published, ours", "Settings"]
            assert [h for h in headings if h in wanted] == wanted, name
            assert "| reference |" in text, name
            assert blocks(ROOT / "docs" / f"{page(kind, name)}.md", "python"), name


def test_every_public_name_is_in_the_reference() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")]
    listed = set(re.findall(r"\.\. auto(?:class|function|exception|data|decorator):: (\S+)", "\n".join(pages)))
    whole = set(re.findall(r"\.\. automodule:: (\S+)", "\n".join(pages)))
    for module in ("polyfed", "polyfed.testing", "polyfed.tasks", "polyfed.weights", "polyfed.metrics"):
        public = getattr(importlib.import_module(module), "__all__", [])
        missing = [n for n in public if f"{module}.{n}" not in listed and f"`{module}.{n}`" not in "\n".join(pages)]
        assert module in whole or not missing, f"{module}: {missing}"
    assert {f"polyfed.{name}" for name in polyfed.__all__} - {"polyfed.Weighting"} <= listed


# the README and the guide


def test_the_readmes_example_is_short_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    ((_, code),) = blocks(ROOT / "README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    space: dict[str, Any] = {}
    exec(code, space)
    assert "accuracy" in capsys.readouterr().out
    assert space["result"].summary["objectives"]["click"]["accuracy"] > 0.8


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """All code of CONTRIBUTING.md as one module."""
    folder = tmp_path_factory.mktemp("guide")
    text = "\n\n".join(code for _, code in blocks(ROOT / "CONTRIBUTING.md", "python"))
    (folder / "doc_guide.py").write_text(text)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("doc_guide")
    sys.path.remove(str(folder))
    forget("doc_guide")


def test_contributings_algorithm_can_be_added_as_written(guide: ModuleType) -> None:
    models = {
        train(small_problem(), small_federation(), guide.Unit(), rounds=3, cohort=4, engine=engine).summary[
            "model_sha256"
        ]
        for engine in ("local", "wire")
    }
    assert len(models) == 1


def test_contributings_other_guides_work_as_written(guide: ModuleType) -> None:
    problem, federation = small_problem(), small_federation()
    method = FedCMOO(compress=guide.First(keep=7), weighting=guide.Longest(share=0.8))
    callbacks, layers = [guide.Until(objective="left", loss=0.9)], [guide.Clip(norm=0.5)]
    result = train(problem, federation, method, rounds=30, engine="plain", callbacks=callbacks, layers=layers)
    assert len(result.history) < 30
    assert result.history[-1]["losses"]["left"] <= 0.9
    assert max(result.history[-1]["weights"].values()) == pytest.approx(0.8)
    assert len(guide.plane(seed=0, rows=10).x) == 10
    check_engine(guide.Plain, exact=True)


def test_the_page_on_engines_names_their_settings() -> None:
    from polyfed.engines import engines

    text = (ROOT / "docs/guides/engines.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \| ([^|]*)\|", text, re.MULTILINE)
    settings = {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in reversed(table)}
    assert {"local", "batched", "auto", "wire"} <= settings.keys()
    for name in ("local", "batched", "auto", "wire"):
        keywords = inspect.signature(engines[name]).parameters.values()
        assert settings[name] == {p.name for p in keywords if p.kind is p.KEYWORD_ONLY}, name
