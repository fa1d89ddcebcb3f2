"""Files of runs that others made: a pipe would keep whoever opens it, and a device has no end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def opened(path: Path) -> BinaryIO:
    """A plain file, to be read; `OSError` where it is anything else.

    Args:
        path: the file.
    """
    file = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path.name} is no plain file")
    return os.fdopen(file, "rb")


def text_of(path: Path) -> str:
    """The whole of a plain file of words; `OSError` or `ValueError` where it is none.

    Args:
        path: the file.
    """
    with opened(path) as file:
        return file.read().decode("utf-8")
