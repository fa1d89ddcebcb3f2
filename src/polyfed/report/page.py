"""The report: one page that needs nothing beside it, with plotly's script, all figures and all tables in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from polyfed.core.errors import BadInput
from polyfed.report.figure import Figure
from polyfed.report.markup import tag, text
from polyfed.report.packing import in_script, packed
from polyfed.report.records import Record, Study
from polyfed.report.sections import (
    differences_section,
    experiments_section,
    failures_section,
    head,
    results_section,
)
from polyfed.report.studies import study_sections

SCRIPTS = ("unpack.js", "theme.js", "figures.js", "cards.js", "page.js")


def page(records: Sequence[Record], figures: Sequence[Figure], title: str, studies: Sequence[Study] = ()) -> str:
    """The whole page as a text.

    Args:
        records: the runs.
        figures: what to draw, thinned.
        title: of the page.
        studies: folders of several runs that are among them.
    """
    from polyfed import __version__

    told = study_sections(studies)
    covered = {id(record) for study in studies for record in study.records}
    whole = bool(told) and all(id(record) in covered for record in records)  # a study has a table of its own
    before = [*told, None if whole else results_section(records)]
    after = [failures_section(records), differences_section(records), experiments_section(records)]
    plotly, scripts = plotly_script(), [web(name) for name in SCRIPTS]
    names = {
        "study": "Study",
        "results": "Results",
        "figures": "Figures",
        "failures": "Failures",
        "differences": "Differences",
    }
    parts = "".join(part for part in (*before, '<section id="figures"', *after) if part)
    links = [tag("a", word, href=f"#{key}") for key, word in names.items() if f'id="{key}"' in parts]
    return Template(web("page.html")).substitute(
        policy=policy([plotly, *scripts]),
        version=text(__version__),
        title=text(title),
        style=web("page.css"),
        links="".join([*links, tag("a", "Experiment", href="#experiments")]),
        head=head(records, title),
        before="".join(part for part in before if part),
        after="".join(part for part in after if part),
        data=in_script([packed(figure) for figure in figures]),
        plotly=base64.b64encode(gzip.compress(plotly.encode(), 9, mtime=0)).decode(),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def web(name: str) -> str:
    """One of the page's own files: a script, the sheet or the frame."""
    return (files("polyfed.report") / "web" / name).read_text(encoding="utf-8")


def plotly_script() -> str:
    """plotly.js, as the installed plotly package has it."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise BadInput("The page's figures need plotly: pip install 'polyfed[report]'.")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def policy(scripts: Sequence[str]) -> str:
    """What the browser lets the page do: run these very scripts, no others, and reach nothing.

    Args:
        scripts: the texts of the page's script elements, that of plotly.js among them.
    """
    sums = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in sums)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
