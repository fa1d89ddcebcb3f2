"""HTML from values: every text is escaped unless it is `Html` already, so that a name is never markup."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeAlias


class Html(str):
    """Markup that was made here."""

    __slots__ = ()


Part: TypeAlias = str | Html | int | None
TALL = 24  # rows from which on a table scrolls in itself
EMPTY = ("meta", "link")  # elements that have no end


def tag(name: str, *inside: Part, **attributes: str | bool | None) -> Html:
    """An element; None inside is nothing, and an attribute that is None or False is left out.

    Args:
        name: of the element.
        inside: texts, which are escaped, and elements.
        attributes: by name; an underscore at the end is dropped (`class_`), others become hyphens.
    """
    told = "".join(_attribute(key, value) for key, value in attributes.items() if value not in (None, False))
    if name in EMPTY:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{''.join(text(part) for part in inside if part is not None)}</{name}>")


def text(part: Part) -> Html:
    """A text as markup shows it; characters that cannot be seen are written out, as they may turn a line around."""
    if isinstance(part, Html):
        return part
    seen = (c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in str(part))
    return Html(escape("".join(seen)))


def _attribute(key: str, value: str | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def table(head: Sequence[Part], rows: Sequence[Sequence[Html]], caption: Part) -> Html:
    """A table that scrolls by itself where it is wider than the page.

    Args:
        head: the names of the columns.
        rows: their cells, made by `cell` or `header`.
        caption: what the table is of.
    """
    words = [one.startswith('<td class="text"') for one in rows[0]] if rows else [False] * len(head)
    names = [
        tag("th", name, scope="col", class_="text" if left else None) for name, left in zip(head, words, strict=True)
    ]
    body = tag("tbody", *(tag("tr", *row) for row in rows))
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", *names)), body)
    kind = "scroll tall" if len(rows) > TALL else "scroll"
    return tag("div", whole, class_=kind, tabindex="0", role="region", aria_label=str(caption))


def cell(content: Part, best: bool = False, words: bool = False) -> Html:
    """A cell: of figures, or of words; the best of its column is bold, and said to be."""
    kind = "best" if best else "text" if words else None
    return tag("td", content, tag("span", " (best)", class_="unseen") if best else None, class_=kind)


def header(content: Part) -> Html:
    """The cell that names a row."""
    return tag("th", content, scope="row")
