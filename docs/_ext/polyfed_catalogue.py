"""Pages made from the registries: `{settings}` tables, and a page for everything with a name that has none.

```{settings} algorithms fedcmoo
```
"""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.errors import ExtensionError

from polyfed.experiment.catalogue import page, registries, settings_of
from polyfed.experiment.reading import builtin

SINGULAR = {
    "datasets": "data set", "models": "model", "partitions": "partition", "weightings": "weighting",
    "compressors": "compressor", "engines": "engine", "layers": "layer", "callbacks": "callback",
    "rules": "rule", "server_optimizers": "server optimiser",
}  # fmt: skip
USED_AS = {  # where its name stands in an experiment
    "datasets": ("[data]", "name"), "models": ("[model]", "name"), "partitions": ("[data]", "partition"),
    "weightings": ("[algorithm]", "weighting"), "compressors": ("[algorithm]", "compress"),
    "engines": ("[engine]", "name"), "layers": ("[[layers]]", "name"), "callbacks": ("[[callbacks]]", "name"),
    "rules": ("[algorithm]", "rule"), "server_optimizers": ("[algorithm]", "server_optimizer"),
}  # fmt: skip
EXAMPLES = {  # what has to stand beside a name
    "weightings fixed": {"weights": "[0.7, 0.3]"},
    "layers misreport": {"clients": "[0, 1]"},
    "layers quantise": {"bits": "8"},
    "callbacks time-budget": {"seconds": "3600"},
    "callbacks byte-budget": {"bytes": "1e9"},
    "datasets nodes": {"clients": "4", "shape": "[10]", "objectives": "{ click = 2 }"},
    "datasets tridiagonal": {"partition": '"natural"'},
    "partitions natural": {"name": '"synthetic"'},
    "rules cosine": {"start": "0.1", "warm_up": "5"},
    "rules plateau": {"start": "0.1"},
    "rules fmgda-corollary-2": {"L": "4.0"},
    "rules fmgda-corollary-4": {"L": "4.0", "mu": "0.5"},
    "rules fsmgda-corollary-6": {"L": "4.0"},
    "rules fsmgda-corollary-8": {"mu": "0.5"},
    "rules fedmgda-theorem-1": {"start": "1.0"},
    "rules fedmgda-theorem-2": {"c": "0.5"},
    "rules fedmgda-decay": {"start": "1.0", "decay": "0.1"},
    "rules mfa-theorem-1": {"L": "4.0", "mu": "0.5"},
    "rules mfa-theorem-2": {"L": "4.0", "mu": "0.5"},
    "rules mocha-theorem-1": {"gap": "0.01", "mu": "1.0", "sigma_max": "5.0"},
    "rules mocha-theorem-2": {"gap": "0.01", "scale": "500.0"},
}
FOR_RULES = {  # what a theorem is about, beside the rule
    "fmgda-corollary-2": ('name = "fmgda"',),
    "fmgda-corollary-4": ('name = "fmgda"',),
    "fsmgda-corollary-6": ('name = "fsmgda"',),
    "fsmgda-corollary-8": ('name = "fsmgda"',),
    "fedmgda-theorem-1": ('name = "fedmgda"',),
    "fedmgda-theorem-2": ('name = "fedmgda"', "local_steps = 1", "batch_size = 0"),
    "fedmgda-decay": ('name = "fedmgda+"',),
    "mfa-theorem-1": ('name = "fedavg"',),
    "mfa-theorem-2": ('name = "fedavg"', "batch_size = 0"),
}
INTRODUCED = {
    "datasets": "How they are found, fetched and split is in [Your data](../../guides/data.md).",
    "partitions": "Who gets which rows: see [Your data](../../guides/data.md).",
    "models": "Networks by name; a module of your own needs no registration: see [Your model](../../guides/model.md).",
    "weightings": "From a Gram matrix of gradients to weights: see [Weightings](../../methods/weightings.md).",
    "compressors": "A Jacobian in few bytes: see [Compressors](../../methods/compressors.md).",
    "engines": "Where clients work: see [Engines and speed](../../guides/engines.md).",
    "layers": "What stands between a method and its clients: see [Architecture](../../architecture.md).",
    "rules": "Step sizes, batches and radii as a theorem has them: see [Rates and rules](../../guides/rates.md).",
    "server_optimizers": "What the server makes of a round's step: see [Training](../../guides/training.md).",
    "callbacks": "What watches a run, and may stop it: see [Watch, stop, keep the best](../../guides/loop.md).",
}


class Settings(Directive):
    """A table of the settings of a registered thing."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        kind, name = self.arguments
        if kind not in registries() or name not in registries()[kind]:
            raise self.error(f"{{settings}} {kind} {name}: there is none of that name.")
        rows = settings_of(kind, name)
        if not rows:
            return [nodes.paragraph(text="It has no settings.")]
        text = ["| setting | values | default | meaning |", "|---|---|---|---|"]
        for row in rows:
            default = "needed" if row.default is None else f"`{row.default}`" if row.default else ""
            text.append(f"| `{row.name}` | {_cell(row.values)} | {_cell(default)} | {_cell(row.meaning)} |")
        made = nodes.container()
        source = self.state_machine.get_source(self.lineno)
        self.state.nested_parse(StringList(text, source), self.content_offset, made)
        for table in made.findall(nodes.table):
            table["classes"].append("settings")
        return list(made.children)


def _cell(text: str) -> str:
    code = re.split(r"(`[^`]*`)", text)
    return "".join(p.replace("|", "\\|") if p.startswith("`") else re.sub(r"([|*_<>\[\]])", r"\\\1", p) for p in code)


def write_pages(app: Any) -> None:
    """Pages of everything by name that has none of its own, and the notebook, into folders that git ignores."""
    root = Path(app.srcdir)
    catalogue = root / "catalogue"
    shutil.rmtree(catalogue, ignore_errors=True)
    kinds = {kind: registry for kind, registry in registries().items() if kind in SINGULAR}
    for kind, registry in kinds.items():
        folder = catalogue / kind
        folder.mkdir(parents=True)
        names = list(registry)
        for name in names:
            (root / f"{page(kind, name)}.md").write_text(_page(kind, name, registry[name]), encoding="utf-8")
        rows = [f"| [{name}]({Path(page(kind, name)).name}.md) | {_cell(registry.help(name))} |" for name in names]
        listed = "\n".join(Path(page(kind, name)).name for name in names)
        title = f"{SINGULAR[kind].capitalize()}s"
        text = f"# {title}\n\n{INTRODUCED[kind]}\n\n| | |\n|---|---|\n" + "\n".join(rows)
        hidden = f"```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
        (folder / "index.md").write_text(f"{text}\n\n{hidden}", encoding="utf-8")
    _experiments(catalogue)
    listed = "\n".join(f"{kind}/index" for kind in kinds)
    tree = f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\nexperiments\n```\n"
    top = f"# Catalogue\n\nEverything that is found by its name.\n\n{tree}"
    (catalogue / "index.md").write_text(top, encoding="utf-8")
    shutil.copy(root.parent / "examples" / "tour.ipynb", root / "tour.ipynb")


def _page(kind: str, name: str, thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    text = "\n\n".join(part for part in text.split("\n\n") if not part.startswith("Args:"))
    prose = "\n\n".join(_cell(part) for part in text.split("\n\n"))
    example = f"```toml\n{_example(kind, name)}\n```"
    settings = f"## Settings\n\n```{{settings}} {kind} {name}\n```\n"
    return f"# {name}\n\n{SINGULAR[kind].capitalize()}.\n\n{prose}\n\n{example}\n\n{settings}"


def _example(kind: str, name: str) -> str:
    """How an experiment names it, with the settings that it needs."""
    head, key = USED_AS[kind]
    given = EXAMPLES.get(f"{kind} {name}", {})
    for setting in settings_of(kind, name):
        if setting.default is None and setting.name not in given:
            raise ExtensionError(f"{kind} {name} needs {setting.name}: give an example in {Path(__file__).name}.")
    if kind == "rules":
        inside = ", ".join(f"{setting} = {value}" for setting, value in {"rule": f'"{name}"', **given}.items())
        settings = registries()[kind][name].settings()
        if "rounds" in settings:
            return f"rounds = {{ {inside} }}"
        return "\n".join([head, *FOR_RULES.get(name, ()), f"{settings[0]} = {{ {inside} }}"])
    if given and key in ("weighting", "compress"):  # a table in place of the name
        inside = ", ".join(f"{setting} = {value}" for setting, value in {"name": f'"{name}"', **given}.items())
        return f"{head}\n{key} = {{ {inside} }}"
    return "\n".join([head, f'{key} = "{name}"', *(f"{setting} = {value}" for setting, value in given.items())])


def _experiments(catalogue: Path) -> None:
    parts = ["# Built-in experiments\n", "`polyfed run NAME` runs one; `--set` changes any key.\n"]
    for name, path in sorted(builtin().items()):
        parts.append(f"## {name}\n\n```toml\n{path.read_text(encoding='utf-8').strip()}\n```\n")
    (catalogue / "experiments.md").write_text("\n".join(parts), encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("settings", Settings)
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
