"""Files of a run, read with bounds: never through a link, never from a pipe, never more than asked for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from polyfed.core.errors import BadInput

TEXT = 4 << 20  # bytes of an experiment or a result
TAIL = 64 << 10  # bytes at the end of metrics.jsonl that the list looks at
LONGEST = 8 << 20  # bytes of one line there: 40 objectives of a million clients are in another file
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read(path: Path, most: int = TEXT) -> bytes:
    """A whole file; `BadInput` where it is no plain file, a link, or larger than `most`.

    Args:
        path: the file; its folder is known to be ours.
        most: the bytes that it may have.
    """
    with os.fdopen(_open(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > most:
            raise BadInput(f"{path.name} is larger than {most >> 20} MB, which nothing of polyfed writes.")
        return file.read(most + 1)


def last_lines(path: Path) -> list[bytes]:
    """The whole lines at the end of a file, newest last; of a long file, those of its last 64 KB, at least one.

    Args:
        path: a file of lines.
    """
    with os.fdopen(_open(path), "rb") as file:
        size, back = os.fstat(file.fileno()).st_size, TAIL
        while True:
            file.seek(max(0, size - back))
            lines = file.read(back).split(b"\n")
            whole = lines[:-1] if back >= size else lines[1:-1]  # the last is empty, or being written
            if whole or back >= size or back >= LONGEST:
                return whole
            back *= 8


def check_plain(folder: Path, names: tuple[str, ...]) -> None:
    """Refuse a folder in which one of some files is a link, a pipe or a device: others read them by their names.

    Args:
        folder: of a run.
        names: the files that will be read.
    """
    for name in names:
        try:
            mode = os.lstat(folder / name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise BadInput(_not_plain(name))


def _open(path: Path) -> int:
    try:
        if path.is_symlink():  # where the system has no O_NOFOLLOW
            raise BadInput(_not_plain(path.name))
        file = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadInput(_not_plain(path.name)) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadInput(_not_plain(path.name))
    return file


def _not_plain(name: str) -> str:
    return f"{name} is a link or no plain file; polyfed view reads nothing outside its folder, so copy the run into it."
