"""A comparison as people see it: a table in a terminal, plain text in a pipe, HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from polyfed.core.errors import visible
from polyfed.report.digits import reading
from polyfed.study.measures import COSTS

EDGES = 3  # characters of a column beside its text
LEFT, RIGHT = ' style="text-align:left"', ' style="text-align:right;padding-left:1em"'


def number(metric: str, value: float | None) -> str:
    """A figure as tables show it."""
    return "-" if value is None else reading(metric, value)


def figure_text(metric: str, cell: Mapping[str, Any]) -> str:
    """Mean and spread of a figure."""
    return "-" if cell["mean"] is None else reading(metric, cell["mean"], cell["std"])


def cost_text(key: str, mean: float | None) -> str:
    """Rounds, bytes or seconds."""
    if mean is None:
        return "-"
    return decimal(round(mean)) if key.startswith("bytes") else f"{mean:.1f} s" if key == "seconds" else f"{mean:.1f}"


class Block(NamedTuple):
    """A table: its title, heads, rows, and in each row which texts are the best of their column."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    best: list[list[bool]]


def blocks(about: Mapping[str, Any]) -> list[Block]:
    """The tables of a comparison: figures, and what they took."""
    return [_figures(about), *([_costs(about)] if about["target"] else [])]


def _figures(about: Mapping[str, Any]) -> Block:
    n, runs, rows = len(about["seeds"]), len(about["cells"]), len(about["table"])
    title = f"{about['name']}: {rows} method{'s' * (rows != 1)}, {runs} run{'s' * (runs != 1)}"
    measures = [one for one in about["figures"] if one["shown"]]
    made = Block(title, ["method", *(one["title"] for one in measures)], [], [])
    for row in about["table"]:
        few = "" if row["runs"] == n else f" ({row['runs']} of {n} runs)"
        cells = [row["figures"][one["key"]] for one in measures]
        texts = [figure_text(one["metric"], cell) for one, cell in zip(measures, cells, strict=True)]
        made.rows.append([row["row"] + few, *texts])
        made.best.append([False, *(bool(cell["best"]) for cell in cells)])
    return made


def _costs(about: Mapping[str, Any]) -> Block:
    made = Block(f"until {about['target']['text']}", ["method", "rounds", "bytes up", "seconds"], [], [])
    whole = [row["to_target"] for row in about["table"] if row["to_target"]["reached"] == len(about["seeds"])]
    least = {key: min(to[key]["mean"] for to in whole) if len(whole) > 1 else None for key in COSTS}
    for row in about["table"]:
        to = row["to_target"]
        got = "" if to["reached"] == row["runs"] else f" ({to['reached']} of {row['runs']} runs)"
        made.rows.append([row["row"] + got, *(cost_text(key, to[key]["mean"]) for key in COSTS)])
        made.best.append([False, *(to in whole and to[key]["mean"] == least[key] for key in COSTS)])
    return made


def sentences(about: Mapping[str, Any]) -> list[str]:
    """What is said below the table."""
    n = len(about["seeds"])
    of = f"means ± standard deviations over {n} seeds" if n > 1 else "one seed"
    split = f", on {about['split']} data" if isinstance(about["split"], str) else ""
    rounds = f"{_up_to(about)}{about['rounds']} rounds" if about["rounds"] else "each run"
    return [f"The last evaluation of {rounds}{split}; {of}.", *beats(about), *_failures(about)]


def _up_to(about: Mapping[str, Any]) -> str:
    """Whether runs have ended before their last round, by a callback."""
    ran = {rounds for row in about["table"] for rounds in row["totals"]["rounds"]["values"]}
    return "up to " if ran - {about["rounds"], None} else ""


def _failures(about: Mapping[str, Any]) -> list[str]:
    """Which runs failed, and why; those of a method that failed alike together."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for one in about["cells"]:
        if one["why"]:
            seeds.setdefault((one["row"], one["why"]), []).append(one["seed"])
    return [
        f"{row}, seed{'s' * (len(some) > 1)} {', '.join(map(str, some))}, failed: {why}"
        for (row, why), some in seeds.items()
    ]


def beats(about: Mapping[str, Any]) -> list[str]:
    """Who beats whom, a line for each figure of the table."""
    tests = about["tests"]
    if tests["why"]:
        return [tests["why"]]
    said = [f"Who beats whom ({tests['name']}, p < 0.05):"]
    for one in (one for one in about["figures"] if one["shown"]):
        holds = [pair for pair in tests["pairs"] if pair["figure"] == one["key"] and pair["holds"]]
        winners: dict[str, list[str]] = {}
        for pair in holds:
            winners.setdefault(pair["better"], []).append(f"{pair['worse']} (p {_p(pair['p'])})")
        text = "; ".join(f"{name} beats {', '.join(losers)}" for name, losers in winners.items())
        said.append(f"  {one['title']}: {text or 'no difference is significant'}")
    return said


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def as_rich(about: Mapping[str, Any], width: int) -> Group:
    """The tables for a terminal, the best in bold.

    Args:
        about: what study.json says.
        width: of the terminal, in characters; columns that have no room go on below.
    """
    tables = [_rich(part) for block in blocks(about) for part in _fitting(block, width)]
    return Group(*tables, *(Text(visible(text)) for text in sentences(about)))


def _fitting(block: Block, width: int) -> list[Block]:
    """A table as several, each with the first column, none wider than a terminal."""
    columns = zip(block.heads, *block.rows, strict=True)
    widths = [EDGES + max(cell_len(visible(text)) for text in column) for column in columns]
    room = width - 1 - min(widths[0], width // 2)  # a long name is folded
    parts: list[list[int]] = [[]]
    for i, own in enumerate(widths[1:], 1):
        if parts[-1] and sum(widths[j] for j in parts[-1]) + own > room:
            parts.append([])
        parts[-1].append(i)
    return [_of_columns(block, [0, *part], block.title if part is parts[0] else "") for part in parts]


def _of_columns(block: Block, places: Sequence[int], title: str) -> Block:
    heads = [block.heads[i] for i in places]
    rows, best = ([row[i] for i in places] for row in block.rows), ([row[i] for i in places] for row in block.best)
    return Block(title, heads, [*rows], [*best])


def _rich(block: Block) -> Table:
    made = Table(title=Text(visible(block.title)) if block.title else None, title_justify="left")
    for i, head in enumerate(block.heads):
        made.add_column(Text(visible(head)), justify="right" if i else "left", no_wrap=bool(i), overflow="fold")
    for texts, best in zip(block.rows, block.best, strict=True):
        made.add_row(*(Text(visible(t), style="bold" if of else "") for t, of in zip(texts, best, strict=True)))
    return made


def show(about: Mapping[str, Any]) -> None:
    """The table on stdout: in a terminal the best in bold; in a pipe as plain text, the best with a star."""
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:  # which shows nothing in bold
        console.print(as_rich(about, console.width))
    else:
        print(as_text(about))


def as_text(about: Mapping[str, Any]) -> str:
    """The tables as plain text, as wide as they are; the best has a star."""
    return "\n".join([*(f"{_plain(block)}\n" for block in blocks(about)), *map(visible, sentences(about))])


def _plain(block: Block) -> str:
    stars = [[" *" if any(column) else "" for column in zip(*block.best, strict=True)] for _ in block.rows]
    lines = [[h + " " * len(star) for h, star in zip(block.heads, stars[0], strict=True)]]
    for texts, best, some in zip(block.rows, block.best, stars, strict=True):
        lines.append([t + (s if of else " " * len(s)) for t, of, s in zip(texts, best, some, strict=True)])
    lines = [[visible(text) for text in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [
        "  ".join([line[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    ]
    return "\n".join([visible(block.title), "", rows[0], "-" * max(map(len, rows)), *rows[1:]])


def as_html(about: Mapping[str, Any]) -> str:
    """The tables for a notebook; names are text, never markup."""
    said = "<br>".join(html.escape(text) for text in sentences(about))
    return f"{''.join(map(_html, blocks(about)))}<p>{said}</p>"


def _html(block: Block) -> str:
    head = _line("th", block.heads, [False] * len(block.heads))
    rows = "".join(_line("td", texts, best) for texts, best in zip(block.rows, block.best, strict=True))
    title = html.escape(block.title)
    return f"<table><caption{LEFT}>{title}</caption><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _line(tag: str, texts: Sequence[str], best: Sequence[bool]) -> str:
    inner = [f"<b>{html.escape(t)}</b>" if of else html.escape(t) for t, of in zip(texts, best, strict=True)]
    return f"<tr>{''.join(f'<{tag}{RIGHT if i else LEFT}>{text}</{tag}>' for i, text in enumerate(inner))}</tr>"
