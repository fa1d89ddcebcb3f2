"""Where data files are, what to do about a missing one, and arrays that are built once and then opened in an instant.

Files lie under POLYFED_DATA, else under the cache folder: $XDG_CACHE_HOME/polyfed, else ~/.cache/polyfed. Arrays
made from them always go to the cache folder, so that POLYFED_DATA may be read-only.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.cachefolder import cache
from polyfed.core.errors import BadInput
from polyfed.data import datasets

Arrays = dict[str, NDArray[Any]]


def root() -> Path:
    """The folder that holds the data sets' folders."""
    given = os.environ.get("POLYFED_DATA")
    return Path(given).expanduser() if given else cache()


@dataclass(frozen=True)
class File:
    """A file by the publisher's name, and its address and checksum where both are known.

    other: names of the same in another form that we read; lesser: of forms that lack a part of it.
    """

    name: str
    other: tuple[str, ...] = ()
    lesser: tuple[str, ...] = ()
    url: str = ""
    checksum: str = ""


@dataclass(frozen=True)
class Source:
    """The files of one publisher, in one folder of `root()`.

    how: what a person can do when we cannot fetch them, up to the word that says where to put them.
    """

    name: str
    folder: str
    files: tuple[File, ...]
    how: str = ""

    @property
    def fetchable(self) -> bool:
        return all(file.url and file.checksum for file in self.files)

    @property
    def place(self) -> Path:
        """The folder."""
        return root() / self.folder

    def found(self, lesser: bool = True) -> list[Path | None]:
        """The path of each file, None where it is missing; lesser forms may count as missing."""
        names = [(file.name, *file.other, *(file.lesser if lesser else ())) for file in self.files]
        return [next((self.place / name for name in some if (self.place / name).exists()), None) for some in names]

    def paths(self) -> list[Path]:
        """The path of each file; a missing one is a sentence with the remedy."""
        found = self.found()
        for file, path in zip(self.files, found, strict=True):
            if path is None:
                raise BadInput(
                    f"The data set {self.name!r} needs {self.place / file.name}, not found; {self.remedy()}."
                )
        return [path for path in found if path]

    def remedy(self) -> str:
        """What to do when a file is missing, as the end of a sentence."""
        get = f"run 'polyfed data fetch {self.name}'" if self.fetchable else f"{self.how} in {self.place}"
        return f"{get}, or set POLYFED_DATA to the folder that has {self.folder}/"


needs: dict[str, tuple[Source, ...]] = {}


def stored(name: str, *sources: Source) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a data set that is read from files, so that `polyfed data` can list and fetch them."""
    needs[name] = sources
    return datasets(name)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes its reader say becomes one sentence, without a word of what is in the file."""
    broken = (OSError, EOFError, ValueError, KeyError, IndexError, zlib.error, zipfile.BadZipFile, tarfile.TarError)
    try:
        yield
    except broken as error:
        raise BadInput(
            f"{path} cannot be read ({type(error).__name__}); it may be cut short or of another kind: "
            "remove it, then fetch it or copy it there again."
        ) from error


def unpacked(path: Path) -> bytes:
    """A file's bytes; a .gz is unpacked."""
    with reading(path):
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """Arrays of an .npz, in the order asked for."""
    with reading(path), np.load(path) as z:
        return [z[name] for name in names]


def cached(build: Callable[[Path], None], name: str, files: Sequence[Path], **options: object) -> Arrays:
    """Arrays that build(folder) writes as .npy files, from the cache when they are there: memory-mapped.

    The cached copy is named by everything that determines it: the options (a seed, a version, ...) and the files.
    They are mapped copy-on-write, because torch wants arrays it could write to.
    """
    words = [name, *(f"{key}={value}" for key, value in options.items()), f"{_fingerprint(files):08x}"]
    folder = cache() / "built" / "-".join(words)
    with suppress(OSError, ValueError):
        return _open(folder)
    try:
        _write(build, folder)
        return _open(folder)
    except OSError as error:
        raise BadInput(
            f"The cache folder {cache()} cannot be used ({type(error).__name__}); "
            "free space there, or set XDG_CACHE_HOME to a folder that can be written."
        ) from error


def _open(folder: Path) -> Arrays:
    found = {path.stem: np.load(path, mmap_mode="c") for path in folder.glob("*.npy")}
    if not found:
        raise FileNotFoundError(folder)
    return found


def _write(build: Callable[[Path], None], folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
        fresh = Path(temporary) / "arrays"
        fresh.mkdir()
        build(fresh)
        try:
            os.replace(fresh, folder)
        except OSError:  # there is one: of another process that was first, or damaged
            _replace_damaged(fresh, folder)


def _replace_damaged(fresh: Path, folder: Path) -> None:
    with suppress(OSError, ValueError):
        _open(folder)
        return
    shutil.rmtree(folder)  # not while an error holds what was opened: Windows removes no file that is mapped
    os.replace(fresh, folder)


def _fingerprint(files: Sequence[Path]) -> int:
    """From the files' sizes and both their ends: quick, and another version of a file differs in one of them."""
    mark = 0
    for path in files:
        with reading(path), path.open("rb") as f:
            size = path.stat().st_size
            head = f.read(65536)
            f.seek(max(size - 65536, 0))
            mark = zlib.crc32(f.read(), zlib.crc32(head + str(size).encode(), mark))
    return mark
