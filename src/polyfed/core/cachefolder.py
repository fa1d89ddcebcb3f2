"""Where polyfed keeps what can be made again: $XDG_CACHE_HOME/polyfed, else ~/.cache/polyfed."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """The folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "polyfed"
