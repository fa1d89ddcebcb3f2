"""Downloading data sets from their publishers: checked, resumed where it stopped, with a progress bar."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from polyfed.core.errors import BadInput, PolyfedError
from polyfed.data.store import File, Source


def fetch(source: Source) -> None:
    """Download the files of a source that are not there whole, under any name that we read."""
    for file, path in zip(source.files, source.found(lesser=False), strict=True):
        if path is None and not source.fetchable:
            raise BadInput(f"{source.name!r} has no address to download it from: {source.how} in {source.place}.")
        if path is None:
            _retrieve(file, source.place)


def _retrieve(file: File, folder: Path) -> None:
    try:
        import pooch
        import requests
    except ImportError:
        raise BadInput("Downloading needs pooch: pip install 'polyfed[data]'.") from None
    pooch.get_logger().setLevel(logging.ERROR)  # what it would say is on the progress bar
    part = folder / f"{file.name}.part"
    try:
        pooch.retrieve(file.url, file.checksum, file.name, folder, downloader=partial(_download, part))
    except requests.RequestException as error:
        raise PolyfedError(
            f"{file.url} could not be downloaded ({type(error).__name__}); check the connection and run it again: "
            "it goes on where it stopped."
        ) from error
    except ValueError as error:  # pooch's word for another checksum
        raise PolyfedError(
            f"{file.url} gave another file than the publisher's (its checksum differs), which was not kept; "
            f"try again later, or put the right one at {folder / file.name}."
        ) from error
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written ({type(error).__name__}); set POLYFED_DATA to a folder that can be."
        ) from error


def _download(part: Path, url: str, output: str, pooch: Any) -> None:
    """What pooch calls to fill `output`: a file that stays when the connection breaks is filled first, then renamed."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with requests.get(url, headers=headers, stream=True, timeout=60) as answer:
        too_long = answer.status_code == requests.codes.requested_range_not_satisfiable
        if not too_long:
            answer.raise_for_status()
            _save(answer, part, have if answer.status_code == requests.codes.partial_content else 0)
    if too_long:  # what we have is no part of what is there now
        part.unlink()
        _download(part, url, output, pooch)
    else:
        os.replace(part, output)


def _save(answer: Any, part: Path, have: int) -> None:
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    total = have + int(answer.headers.get("Content-Length", 0)) or None
    console = Console(stderr=True)
    with (
        part.open("ab" if have else "wb") as f,
        Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar,
    ):
        task = bar.add_task(part.stem, total=total, completed=have)
        for chunk in answer.iter_content(1 << 16):
            f.write(chunk)
            bar.advance(task, len(chunk))
