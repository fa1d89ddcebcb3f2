"""The code that computes a driver's cells, as a checksum: cells of other code are not taken for those of this one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from polyfed.reproduce.item import Item, paper_folder


def code_of(item: Item) -> str:
    """A checksum of ITEM.py and of the modules beside it that the paper's drivers share; lines may end in either way.

    Args:
        item: whose driver.
    """
    found = hashlib.sha256()
    for path in sources(item):
        found.update(f"{path.name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return found.hexdigest()[:8]


def sources(item: Item) -> list[Path]:
    """ITEM.py, and the modules beside it that are no other item's."""
    every = sorted(paper_folder(item.paper).glob("*.py"))
    return [path for path in every if path.stem == item.name or not path.with_suffix(".toml").is_file()]
