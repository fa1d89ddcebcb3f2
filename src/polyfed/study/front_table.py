"""A front as people see it: a table as text or HTML, and what is said below it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from polyfed.core.errors import visible

MOST = 6  # objectives in the table; front.json has all
NEEDS_MOOCORE = "Hypervolume needs the package moocore: pip install 'polyfed[front]'."


def rows(about: Mapping[str, Any]) -> list[list[str]]:
    """The table: a head, and a row for each point; a star where no other dominates it."""
    names = about["objectives"][:MOST]
    metrics = [
        (name, metric) for metric in _shared(about) for name in names if metric in about["metrics"].get(name, {})
    ]
    head = ["kind", *(f"r {name}" for name in names), *(f"loss {name}" for name in names)]
    found = [[*head, *(f"{metric} {name}" for name, metric in metrics), ""]]
    for point in about["points"]:
        told = [point["kind"], *(f"{point['preference'][name]:.3f}" for name in names)]
        told += [_number(point["losses"].get(name)) for name in names]
        told += [_number(point["metrics"].get(name, {}).get(metric)) for name, metric in metrics]
        found.append([*told, "*" if point["non_dominated"] else "" if point["state"] == "done" else "failed"])
    return found


def _shared(about: Mapping[str, Any]) -> list[str]:
    """The first metric that every objective has, if there is one."""
    every = [list(about["metrics"].get(name, {})) for name in about["objectives"]]
    return [metric for metric in every[0] if all(metric in own for own in every)][:1]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def sentences(about: Mapping[str, Any]) -> list[str]:
    """What is said below the table."""
    done = [point for point in about["points"] if point["state"] == "done"]
    good = sum(point["non_dominated"] for point in done)
    on = f", on {about['split']} data" if about["split"] else ""
    said = [f"{good} of {len(done)} points (*) are not dominated by another{on}."]
    said += [f"{kind}: {_measured(found)}." for kind, found in about["by_kind"].items()]
    if done:
        corner = ", ".join(f"{name} {value:.4g}" for name, value in about["reference"].items())
        how = "" if about["reference_from"] == "given" else ", the worst of the points and a tenth of their range more"
        said.append(f"Reference point: {corner}{how}.")
        said += [NEEDS_MOOCORE] if about["hypervolume"] is None else []
    more = len(about["objectives"]) - MOST
    said += [f"{more} more objectives are in front.json."] if more > 0 else []
    return said + [f"{point['run']} failed: {point['why']}" for point in about["points"] if point["why"]]


def _measured(found: Mapping[str, Any]) -> str:
    volume = "no hypervolume" if found["hypervolume"] is None else f"hypervolume {found['hypervolume']:.5g}"
    even = "" if found["spacing"] is None else f", spacing {found['spacing']:.3g}"
    return f"{found['non_dominated']} of {found['points']} not dominated among themselves, {volume}{even}"


def as_text(about: Mapping[str, Any]) -> str:
    """The table and the sentences as plain text."""
    table = [[visible(text) for text in row] for row in rows(about)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [_line(row, widths) for row in table]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", *map(visible, sentences(about))])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        text.rjust(width) if i else text.ljust(width) for i, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def as_html(about: Mapping[str, Any]) -> str:
    """The same for a notebook; names are text, never markup."""
    head, *body = rows(about)
    inside = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in body)
    top = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    said = "<br>".join(html.escape(text) for text in sentences(about))
    return f"<table><thead><tr>{top}</tr></thead><tbody>{inside}</tbody></table><p>{said}</p>"
