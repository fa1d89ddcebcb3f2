"""What the documents say is run: Python, experiments and commands; links lead somewhere; every name has its page."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import tomli_w
from typer.testing import CliRunner

from polyfed import FedCMOO, train
from polyfed.core.errors import BadInput
from polyfed.core.registry import forget
from polyfed.data.build import build_data
from polyfed.experiment.building import plan
from polyfed.experiment.catalogue import page, registries
from polyfed.experiment.reading import builtin
from polyfed.testing import check_engine
from small import small_federation, small_problem

ROOT = Path(__file__).parents[1]
SITE, SOURCE = "https://polyfed.github.io/polyfed/", r"https://github\.com/polyfed/polyfed/(?:blob|tree|raw)/main/"
MADE = ("_build", "catalogue")  # by Sphinx, from the registries
WRITTEN = [path for path in (ROOT / "docs").rglob("*.md") if path.relative_to(ROOT / "docs").parts[0] not in MADE]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(WRITTEN)]
LANGUAGES = {"python", "toml", "bash", "text"}  # text is output, or a picture


DIRECTIVES = {"toctree", "eval-rst", "include", "literalinclude", "settings"}
FENCE = re.compile(r"[\s>*+-]*(?:\d+[.)]\s*)?(?:`{3,}|~{3,}|:{3,})")  # of any kind, wherever Markdown may see one


class Block(NamedTuple):
    """A fenced block of a page: the first line's words, what is inside, and the prose since the block before."""

    language: str
    code: str
    before: str


class Text(NamedTuple):
    """A page, taken apart: its blocks, the prose without them, and fences that are not understood."""

    blocks: list[Block]
    prose: str
    strange: list[str]


def parts(text: str) -> Text:
    """Blocks start with three backticks or more in the first column, and end with as many."""
    blocks: list[Block] = []
    strange: list[str] = []
    prose, before, inside = "", "", ""
    fence, language = "", ""
    for line in text.splitlines(keepends=True):
        if fence and line.rstrip() == fence:
            blocks.append(Block(language, inside, before))
            fence, before, inside = "", "", ""
        elif fence:
            inside += line
        elif found := re.match(r"(`{3,})([^`]*)$", line):
            fence, language = found[1], found[2].strip()
        else:
            strange += [line.rstrip()] if FENCE.match(line) else []
            prose, before = prose + line, before + line
    return Text(blocks, prose, [*strange, *([f"{fence}{language} has no end"] if fence else [])])


def read(path: Path) -> Text:
    return parts(path.read_text(encoding="utf-8"))


def blocks(path: Path, *languages: str) -> list[Block]:
    return [block for block in read(path).blocks if not languages or block.language in languages]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def having(*languages: str) -> pytest.MarkDecorator:
    """Pages that have blocks of a kind."""
    return pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, *languages)], ids=named)


# blocks


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_block_is_run_or_marked_as_output(path: Path) -> None:
    assert not read(path).strange, "fences of three backticks in the first column only"
    for language, code, _ in blocks(path):
        directive = re.match(r"\{([^}]*)\}", language)
        known = directive[1] in DIRECTIVES if directive else language in LANGUAGES
        assert known, f"{language or 'no language'}: {code.splitlines()[:1]}"


def test_fences_that_are_not_run_are_found() -> None:
    text = "```python\n~~~\n```\n  ```python\n~~~python\n:::{note}\n- ```bash\n# a heading\n````toml\n# none\n```\n"
    assert parts(text).strange == ["  ```python", "~~~python", ":::{note}", "- ```bash", "````toml has no end"]
    assert parts(text).blocks == [Block("python", "~~~\n", "")]


NOT_AS_ONE = ("CONTRIBUTING.md", "README.md")  # run below
SAYS = {"docs/guides/many-models.md": "keyboard/key"}


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "python") and p.name not in NOT_AS_ONE], ids=named)
def test_python_runs_as_written(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert SAYS.get(named(path), "") in run_python(path, capsys)[1]


def run_python(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The names that a page's blocks leave, and what they print: the same as the page says, where it says it."""
    space, all_printed = ModuleType("a_page"), ""
    sys.modules["a_page"] = space  # classes of a page look for their module
    try:
        every = blocks(path)
        for block, after in zip(every, [*every[1:], None], strict=True):
            if block.language != "python":
                continue
            exec(compile(block.code, named(path), "exec"), vars(space))
            printed = capsys.readouterr().out
            all_printed += printed
            assert printed or "print(" not in block.code, f"{named(path)} prints nothing"
            if printed and after and after.language == "text" and is_caption(after.before):
                assert not (wrong := differences(after.code, printed)), f"{named(path)}: {wrong}\n{printed}"
    finally:
        del sys.modules["a_page"]
        forget("a_page")
    return vars(space), all_printed


def is_caption(prose: str) -> bool:
    """Nothing, or one short paragraph, between code and its output."""
    return len(prose) < 400 and "\n\n" not in prose.strip() and not prose.strip().startswith("#")


NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]?\d+)?")
TOKEN = re.compile(rf"[^\W\d]\w*|{NUMBER.pattern}|\S")
TIME = re.compile(r"\d\s*(?:s|ms|µs|us|seconds?|minutes?)\b")


def differences(said: str, printed: str) -> list[str]:
    """Lines that a page shows and its code does not print: other words, or numbers further off than by another CPU."""
    lines = [[line for line in text.splitlines() if line.strip()] for text in (said, printed)]
    if len(lines[0]) != len(lines[1]):
        return [f"{len(lines[0])} lines are shown, {len(lines[1])} printed"]
    return [f"{one!r}, printed {two!r}" for one, two in zip(*lines, strict=True) if not alike(one, two)]


def alike(one: str, two: str) -> bool:
    pair = TOKEN.findall(one), TOKEN.findall(two)
    timed = bool(TIME.search(one))
    return len(pair[0]) == len(pair[1]) and all(same(a, b, timed) for a, b in zip(*pair, strict=True))


def same(one: str, two: str, timed: bool) -> bool:
    if not (NUMBER.fullmatch(one) and NUMBER.fullmatch(two)):
        return one == two
    a, b = (float(word.replace(",", "")) for word in (one, two))
    return timed or math.isclose(a, b, rel_tol=0.05, abs_tol=0.02)


def test_stale_output_is_found() -> None:
    assert not differences("a1 [0.5  0. ] 40,000 bytes, 2.0 s\n", "a1 [0.51 0.01] 40,100 bytes, 9.1 s\n\n")
    assert not differences("gap 1e-05, -0.01", "gap 3e-06, 0.005")
    for stale in ("a 0.60 b", "a 0.50 c", "a 0.50", "a 0.50 b\nmore", "a 0.50, b", "a x b"):
        assert differences("a 0.50 b", stale), stale


@having("toml")
def test_experiments_run(path: Path) -> None:
    from polyfed.cli import app

    with own_module():
        for i, (_, text, _) in enumerate(blocks(path, "toml")):
            experiment = tomllib.loads(text)
            if "data" not in experiment and "models" not in experiment:  # a part of one
                experiment = {**two_digits(), **experiment}
            Path(f"{i}.toml").write_text(tomli_w.dumps(experiment))
            words = ["run", f"{i}.toml", "--rounds", "2"]
            if experiment["data"]["name"] == "nodes":  # whose rows only a deployment's clients have
                words = ["flower", "init", f"app-{i}", "--experiment", f"{i}.toml"]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, f"{text}\n{done.stderr}"


def two_digits() -> dict[str, Any]:
    return tomllib.loads(builtin()["two-digits"].read_text())


@contextmanager
def own_module() -> Iterator[None]:
    """CONTRIBUTING's algorithm as mine.py, and its experiment, here."""
    guide = ROOT / "CONTRIBUTING.md"
    Path("mine.py").write_text("\n\n".join(block.code for block in blocks(guide, "python")[:2]))
    Path("mine.toml").write_text(blocks(guide, "toml")[0].code)
    try:
        yield
    finally:
        forget("mine")
        sys.modules.pop("mine", None)


@having("bash")
@pytest.mark.usefixtures("place")
def test_commands_run(path: Path) -> None:
    Path("rows.csv").write_text("\n".join([",".join(["0.5"] * 112)] * 3))  # two-digits' pictures, for predict
    text = "".join(block.code for block in blocks(path, "bash")).replace("\\\n", " ")
    with own_module():
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words:
                run_command(words)


def run_command(words: list[str]) -> None:
    """A command of a page: ours is run, for fewer rounds; of others, what they name must be there."""
    from polyfed.cli import app

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    match words:
        case ["polyfed", *rest]:
            short = ["--set", "rounds=2", "--seeds", "1"]
            few = ["--trials", "2", "--rounds", "1", "--jobs", "1"]
            points = ["--points", "3", "--rounds", "1", "--first-rounds", "2"]
            once = ["--rounds", "1", "--seeds", "1", "--jobs", "1"]
            shorter = {"run": ["--rounds", "2"], "gain": short, "delta-m": short, "tune": few, "front": points}
            shorter |= {"compare": once, "reproduce": ["--minutes", "0"] if "/" in " ".join(rest) else []}
            fewer = shorter.get(rest[0], [])
            if "ray" in rest:  # tests/deploy/test_ray.py starts one
                rest = on_local(rest)
            within_reach = [word for word in rest if not word.startswith("--target=")]
            done = CliRunner().invoke(app, [*within_reach, *fewer])
            assert done.exit_code == 0, f"{' '.join(words)}\n{done.stderr}"
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        case ["pip", "install", what]:
            extras = [extra for listed in re.findall(r"\[(.*)\]", what) for extra in listed.split(",")]
            assert all(extra in project["optional-dependencies"] for extra in extras), what
        case ["python", script, *rest]:
            options = [word.partition("=")[0] for word in rest if word.startswith("--")]
            unknown = [option for option in options if f'"{option}"' not in (ROOT / script).read_text("utf-8")]
            assert not unknown, f"{script} has no {unknown}"
        case _:
            pytest.fail(f"nobody runs {words}; mark it as text")


def on_local(words: list[str]) -> list[str]:
    """A command for another engine on engine local: without that engine's settings."""
    settings = [i for i, word in enumerate(words) if word.startswith("engine.") and words[i - 1] == "--set"]
    kept = [word for i, word in enumerate(words) if i not in settings and i + 1 not in settings]
    return ["local" if word == "ray" else word for word in kept]


def test_only_the_engine_is_taken_out_of_a_command() -> None:
    words = shlex.split("run two-digits --set a.b=1 --engine ray --set engine.workers=2 --seed 1")
    assert " ".join(on_local(words)) == "run two-digits --set a.b=1 --engine local --seed 1"


# links and names


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A docs folder with the pages that Sphinx makes from the registries."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "docs").mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples")
    extension("polyfed_catalogue").write_pages(SimpleNamespace(srcdir=folder / "docs"))
    return folder / "docs"


def extension(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs" / "_ext"))


def test_what_a_page_would_fetch_is_found() -> None:
    html, css = (extension("polyfed_mathjax").FETCHED[files] for files in ("*.html", "*.css"))
    away = ["<script defer src='https://a.b/c.js'>", '<img alt="" src="//a.b/c.png">', "<iframe src=http://a.b>"]
    away += ['<link rel="stylesheet" href="https://a.b">', "<link href='//a.b' rel='preload stylesheet'>"]
    assert all(html.search(text) for text in away)
    here = ['<script src="../a.js">', '<link rel="canonical" href="https://a.b">', '<a href="https://a.b">']
    assert not any(html.search(text) for text in here)
    assert all(css.search(text) for text in ("@import 'https://a.b';", "@import url(//a.b)", 'x: url( "http://a.b")'))
    assert not any(css.search(text) for text in ("@import 'a.css';", "x: url(a.png)", "/* https://a.b */"))


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks/README.md"], ids=named)
def test_links_lead_somewhere(path: Path, made: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", read(path).prose)):
        file, _, anchor = target.partition("#")
        if file.startswith(SITE):
            wanted = ROOT / "docs" / file.removeprefix(SITE).replace(".html", ".md")
        elif re.match(SOURCE, file):
            wanted = ROOT / re.sub(SOURCE, "", file)
        elif file.startswith("http"):
            continue
        else:
            assert path.parent != ROOT or not file, f"{path.name} is shown elsewhere, too: link to {target} absolutely"
            wanted = Path(os.path.normpath(path.parent / file)) if file else path
        site = wanted.relative_to(ROOT).parts
        if site[:2] == ("docs", "catalogue"):
            wanted = made / Path(*site[1:])
        elif site[:1] == ("docs",) and wanted.stem == "tour":
            wanted = made / "tour.ipynb"
        elif site[:3] == ("docs", "results", "figures"):
            continue  # drawn by Sphinx; tests/reproduce/test_results.py knows them
        assert wanted.exists(), f"{named(path)}: {target}"
        if anchor and wanted.suffix == ".md":
            assert anchor in anchors(wanted), f"{named(path)}: {target}"


def test_the_gallery_has_pictures_that_are_small_and_the_readme_has_one() -> None:
    shown = re.findall(r"!\[[^\]]{20,}\]\(([^)]+\.png)\)", read(ROOT / "docs/gallery.md").prose)
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs/gallery").iterdir()}
    assert {Path(name).name for name in shown} == sizes.keys()
    assert len(sizes) >= 6
    assert max(sizes.values()) <= 150_000
    assert sum(sizes.values()) <= 1_200_000
    assert re.search(r"!\[[^\]]{20,}\]\(https://\S+/raw/main/docs/gallery/\S+\.png\)", read(ROOT / "README.md").prose)


def anchors(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    for included in re.findall(r"```\{include\} (\S+)", text):
        text += (path.parent / included).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", parts(text).prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def ours(kind: str) -> list[str]:
    """Names that the package registers; others are another test's."""
    registry = registries()[kind]
    return [name for name in registry if registry[name].__module__.startswith("polyfed.")]


def test_every_name_has_a_page(made: Path) -> None:
    for kind in registries():
        for name in ours(kind):
            wanted = f"{page(kind, name)}.md"
            found = made / wanted if (made / wanted).is_file() else ROOT / "docs" / wanted
            assert found.is_file(), f"{kind} {name}: there is no docs/{wanted}"
            assert f"{{settings}} {kind} {name}\n" in found.read_text(encoding="utf-8"), f"{wanted} has no settings"


@pytest.mark.parametrize("kind", ["weightings", "compressors"])
def test_every_rule_has_its_section(kind: str) -> None:
    headings = re.findall(r"^## (.*)$", read(ROOT / f"docs/methods/{kind}.md").prose, re.MULTILINE)
    assert set(ours(kind)) <= set(headings)


def test_what_made_pages_show_can_be_read(made: Path) -> None:
    shown = [block.code for path in made.rglob("*.md") for block in blocks(path, "toml")]
    assert len(shown) > 80
    assert all(tomllib.loads(text) for text in shown)


UNFIT = {"fedmgda-cifar-net", "fedmgda-fmnist-net", "shakespeare-lstm", "two-digit-net"}  # for two-digits' pictures
UNFIT |= {"krum"}  # for two objectives
UNFIT |= {"qm9-gnn"}  # for one array


@pytest.mark.parametrize("kind", [kind for kind in registries() if kind not in ("algorithms", "schedules", "datasets")])
def test_what_made_pages_show_builds(kind: str, made: Path) -> None:
    for name in ours(kind):
        if name in UNFIT:
            continue
        (block,) = blocks(made / f"{page(kind, name)}.md", "toml")
        method = {"name": "fedavg" if kind == "models" else "fedcmoo"}
        more = {"rounds": 100} if kind == "rules" else {}
        experiment = {**two_digits(), **more, "algorithm": method, **tomllib.loads(block.code)}
        plan(name, {**experiment, "data": {"name": "two-digits", **experiment["data"]}})


MADE_UP = {
    "nodes", "paraboloids", "quadratic", "related-tasks", "synthetic", "tridiagonal", "two-digits", "vlmop1",
}  # fmt: skip


def test_what_pages_of_data_show_builds(made: Path, place: Path) -> None:
    for name in ours("datasets"):
        (block,) = blocks(made / f"{page('datasets', name)}.md", "toml")
        with nullcontext() if name in MADE_UP else pytest.raises(BadInput, match=f"needs {re.escape(str(place))}"):
            build_data(tomllib.loads(block.code)["data"], seed=0)


def test_every_method_page_has_its_parts() -> None:
    for kind in ("algorithms", "schedules"):
        for name in ours(kind):
            text = (ROOT / "docs" / f"{page(kind, name)}.md").read_text(encoding="utf-8")
            headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
            wanted = ["The method", "Example", "What it costs", "Printed, published, ours", "Settings"]
            assert [h for h in headings if h in wanted] == wanted, name
            assert "| reference |" in text, name
            ours_and_theirs = text.split("## Printed, published, ours\n")[1].split("\n## ")[0]
            for word in ("settings", "As printed", "code"):  # what is printed, what code does, how to run either
                assert word in ours_and_theirs, (name, word)
            assert any(f'"{name}"' in block.code for block in parts(ours_and_theirs).blocks), name
            assert blocks(ROOT / "docs" / f"{page(kind, name)}.md", "python"), name


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"^\.\. (?:auto|py:)(?:class|function|exception|data|decorator):: (\S+)", pages, re.M))
    whole = dict(re.findall(r"^\.\. automodule:: (\S+)\n   :members:((?:\n   :.*)*)", pages, re.M))
    things = [look_up(name) for name in listed]
    for module in ("", ".testing", ".tasks", ".weights", ".metrics", ".callbacks"):
        module = f"polyfed{module}"
        public = importlib.import_module(module).__all__
        assert public
        for name in public:
            thing = look_up(f"{module}.{name}")
            member = module in whole and not re.search(rf":exclude-members:.*\b{name}\b", whole[module])
            shown = member and (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__doc__
            named_so = f"{module}.{name}" in listed or any(thing is other for other in things)
            assert shown or named_so, f"{module}.{name} is not in docs/reference"


def look_up(name: str) -> Any:
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(module), name)


# the README and the guide


def test_the_readmes_example_is_short_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    ((_, code, _),) = blocks(ROOT / "README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    space, printed = run_python(ROOT / "README.md", capsys)
    assert "accuracy" in printed
    assert space["result"].summary["objectives"]["click"]["accuracy"] > 0.8


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """All code of CONTRIBUTING.md as one module."""
    folder = tmp_path_factory.mktemp("guide")
    text = "\n\n".join(block.code for block in blocks(ROOT / "CONTRIBUTING.md", "python"))
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
