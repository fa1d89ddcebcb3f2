"""failures/ of a run: the tracebacks of what went wrong on this machine, the first few that differ."""

from __future__ import annotations

import logging
import traceback
import zlib
from pathlib import Path

MOST = 20  # files
LONGEST = 20_000  # characters of one

log = logging.getLogger("polyfed")


def keep_traceback(folder: Path | None, error: BaseException, about: str) -> None:
    """Write an error down, unless one from the same place is there or there are enough; never fail for it.

    Args:
        folder: the run's failures/, whose run must be there; None at a deployed node, which logs it.
        error: what was raised.
        about: whose it is, and when.
    """
    if folder is None:
        log.error("%s failed", about, exc_info=error)
        return
    walked = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
    path = folder / f"{type(error).__name__}-{zlib.crc32(repr(places).encode()):08x}.txt"
    try:
        folder.mkdir(exist_ok=True)  # not on a machine that does not have the run
        if path.exists() or sum(1 for _ in folder.iterdir()) >= MOST:
            return
        with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{about}\n\n{_shortened(''.join(traceback.format_exception(error)))}")
    except OSError:  # a full disk, or another worker with the same: the reply says what happened, too
        pass


def _shortened(text: str) -> str:
    """The beginning and the end."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}\n...\n{text[-half:]}"
