"""Where examples come from that are not held in memory: sources that are read, some rows at a time.

An x of tensors is *resident*. An x that is a `Source` is *streamed*: its rows are drawn in the same way, and read when
their turn comes.
"""

from __future__ import annotations

import mmap
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from polyfed.core.errors import BadInput, cut, shown

Index = NDArray[np.int64]


class Source(ABC):
    """Examples that are read when they are needed. Several threads may read at once, other processes read copies of it,
    and a row is the same whenever it is read: what is random belongs into `augment`."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def read(self, rows: Index) -> Any:
        """Some rows as a tensor in the host's memory, or a dict, tuple or list of such, in the order asked for.

        Args:
            rows: their numbers.
        """

    def name(self, row: int) -> str:
        """What a row is called in an error.

        Args:
            row: its number.
        """
        return f"row {row}"

    def select(self, rows: Index) -> Source:
        """Some of the rows, by number: no data are read or copied.

        Args:
            rows: their numbers.
        """
        return Selected(self, rows)


class MemoryMap(Source):
    """The rows of a memory map; other processes open its file anew.

    Args:
        array: of `numpy.load(path, mmap_mode="r")` or `numpy.memmap`, or a slice of one.
    """

    def __init__(self, array: np.memmap[Any, Any]) -> None:
        root = array
        while isinstance(root.base, np.memmap):
            root = root.base
        if root.filename is None:
            raise BadInput("A memory map as x should be opened by the path of its file. Found one without a path.")
        self._path, self._dtype, self._shape, self._strides = root.filename, array.dtype, array.shape, array.strides
        self._offset = array.ctypes.data - root.ctypes.data + root.offset
        self._opened: tuple[mmap.mmap, NDArray[Any]] | None = None  # a map of our own: it is advised for rows at random
        if not array.ndim:
            raise BadInput(f"A memory map as x should have one row per example. Found one number in {self._path}.")
        torch.from_numpy(np.empty(0, self._dtype.newbyteorder("=")))  # a type that torch has

    def __len__(self) -> int:
        return int(self._shape[0])

    def read(self, rows: Index) -> Tensor:
        if self._opened is None:
            self._opened = self._open()
        pages, array = self._opened
        if hasattr(mmap, "MADV_WILLNEED") and array.flags.c_contiguous:
            for first, last in _stretches(rows, array.strides[0]):
                begin = self._offset + first * array.strides[0]
                end = self._offset + (last + 1) * array.strides[0]
                pages.madvise(mmap.MADV_WILLNEED, begin - begin % mmap.PAGESIZE, end - begin + begin % mmap.PAGESIZE)
        return torch.from_numpy(array[rows].astype(self._dtype.newbyteorder("="), copy=False))

    def name(self, row: int) -> str:
        return f"row {row} of {self._path}"

    def _open(self) -> tuple[mmap.mmap, NDArray[Any]]:
        try:
            with open(self._path, "rb") as file:
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BadInput(f"The memory map {self._path} cannot be opened: {cut(str(error), 120)}.") from error
        if hasattr(mmap, "MADV_RANDOM"):  # or the system reads megabytes around every row
            pages.madvise(mmap.MADV_RANDOM)
        return pages, np.ndarray(self._shape, self._dtype, pages, self._offset, self._strides)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def _stretches(rows: Index, size: int) -> list[tuple[int, int]]:
    """The first and last rows of what is worth reading at once: rows in sequence, or each row of a page or more.

    Args:
        rows: their numbers.
        size: of a row in bytes.
    """
    if len(rows) > 1 and bool((np.diff(rows) == 1).all()):
        return [(int(rows[0]), int(rows[-1]))]
    return [(row, row) for row in rows.tolist()] if size >= mmap.PAGESIZE else []


class Files(Source):
    """One example per file.

    Args:
        paths: the files in their order; or a folder, whose files are taken in the order of their names, numbers in
            them by value: 2.npy before 10.npy.
        load: from a path to the example: an array or a tensor, or a dict or tuple of such.
        pattern: of a folder's files, which are taken: `"*.npy"`, `"**/*.png"`.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        load: Callable[[Path], Any] = np.load,
        pattern: str = "*",
    ) -> None:
        if isinstance(paths, str | Path):
            folder = Path(paths)
            if not folder.is_dir():
                raise BadInput(f"Files should be given as a folder or a list of paths. Found {shown(str(paths))}.")
            paths = found = [path for path in folder.glob(pattern) if path.is_file()]
            found.sort(key=_by_number)
        self._paths, self._load = [os.fspath(path) for path in paths], load
        if not self._paths:
            raise BadInput("Files should be at least one. Found none; the pattern may be of other names.")

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, rows: Index) -> Any:
        return stacked([self._one(self._paths[row]) for row in rows.tolist()])

    def name(self, row: int) -> str:
        return f"the file {self._paths[row]}"

    def _one(self, path: str) -> Any:
        try:
            return self._load(Path(path))
        except Exception as error:  # the user's own function
            why = cut(f"{type(error).__name__}: {error}", 150)
            raise BadInput(f"The file {path} cannot be read ({why}).") from error


def _by_number(path: Path) -> tuple[list[list[tuple[int, int]]], Path]:
    """What paths are sorted by: as texts, but numbers, which stand where a digit would, by value."""
    pieces = [re.findall(r"[0-9]+|[^0-9]", part) for part in path.parts]
    return [[(48, int(p)) if p[0] in "0123456789" else (ord(p), 0) for p in part] for part in pieces], path


class Items(Source):
    """The examples of a torch Dataset, read by one thread at a time: it may have one file open.

    Args:
        dataset: with a length and items by number.
        part: from an item to its x.
        whose: its name in an error.
    """

    def __init__(self, dataset: Any, part: Callable[[Any], Any], whose: str = "the data set") -> None:
        self._dataset, self._part, self._whose, self._length = dataset, part, whose, len(dataset)
        self._one_at_a_time = threading.Lock()

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Index) -> Any:
        with self._one_at_a_time:
            return stacked([self._part(self.item(row)) for row in rows.tolist()])

    def item(self, row: int) -> Any:
        """One item of the data set.

        Args:
            row: its number.
        """
        try:
            return self._dataset[row]
        except Exception as error:  # the user's own code
            why = cut(f"{type(error).__name__}: {error}", 250)
            raise BadInput(f"Item {row} of {self._whose} cannot be read ({why}).") from error

    def name(self, row: int) -> str:
        return f"item {row} of {self._whose}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_one_at_a_time"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _one_at_a_time=threading.Lock())


class Held(Source):
    """Tensors in memory, as a part of something larger that is streamed."""

    def __init__(self, x: Any) -> None:
        self._x, self._length = x, len(pytree.tree_leaves(x)[0])

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Index) -> Any:
        index = torch.from_numpy(rows)
        return pytree.tree_map(lambda t: t[index], self._x)

    def select(self, rows: Index) -> Source:
        return Held(self.read(rows))


class Selected(Source):
    """Some rows of a source, by number."""

    def __init__(self, source: Source, rows: Index) -> None:
        self._source, self._rows = source, rows

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: Index) -> Any:
        return self._source.read(self._rows[rows])

    def name(self, row: int) -> str:
        return self._source.name(int(self._rows[row]))

    def select(self, rows: Index) -> Source:
        return self._source.select(self._rows[rows])


class Joined(Source):
    """The rows of several sources, one after another.

    Args:
        parts: sources, or tensors of the same structure.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = [part if isinstance(part, Source) else Held(part) for part in parts]
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, rows: Index) -> Any:
        whose = np.searchsorted(self._ends, rows, side="right")
        order = np.argsort(whose, kind="stable")
        found = [self._parts[p].read(rows[whose == p] - self._start(p)) for p in np.unique(whose).tolist()]
        if len(found) == 1:
            return found[0]
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        try:
            return pytree.tree_map(lambda *some: torch.cat(some)[back], *found)
        except (RuntimeError, ValueError) as error:
            shapes = shown([[tuple(t.shape[1:]) for t in pytree.tree_leaves(x)] for x in found])
            raise BadInput(f"The sources of x should give rows of one shape and type. Found {shapes}.") from error

    def name(self, row: int) -> str:
        p = int(np.searchsorted(self._ends, row, side="right"))
        return self._parts[p].name(row - self._start(p))

    def select(self, rows: Index) -> Source:
        """Of the parts, those that have some of the rows."""
        whose = np.searchsorted(self._ends, rows, side="right")
        used = np.unique(whose)
        if len(used) == 1:
            only = int(used[0])
            part: Source = self._parts[only]
            return part.select(rows - self._start(only))
        if len(used) == len(self._parts):
            return Selected(self, rows)
        starts = self._ends - [len(part) for part in self._parts]
        fewer = Joined([self._parts[p] for p in used])
        new = fewer._ends - [len(part) for part in fewer._parts]
        return Selected(fewer, rows - starts[whose] + new[np.searchsorted(used, whose)])

    def _start(self, part: int) -> int:
        return int(self._ends[part]) - len(self._parts[part])


class Structure(Source):
    """Several sources side by side: a dict, tuple or list of them, and of tensors."""

    def __init__(self, parts: Any) -> None:
        self._parts = pytree.tree_map(lambda part: part if isinstance(part, Source) else Held(part), parts)
        self._length = len(pytree.tree_leaves(self._parts)[0])

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Index) -> Any:
        return pytree.tree_map(lambda part: part.read(rows), self._parts)

    def name(self, row: int) -> str:
        name: str = pytree.tree_leaves(self._parts)[0].name(row)
        return name

    def select(self, rows: Index) -> Source:
        return Structure(pytree.tree_map(lambda part: part.select(rows), self._parts))


class Placed(Source):
    """A source whose rows are put on a device as they are read."""

    def __init__(self, source: Source, device: torch.device) -> None:
        self._source, self._device = source, device

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Index) -> Any:
        return pytree.tree_map(lambda t: t.to(self._device), self._source.read(rows))

    def name(self, row: int) -> str:
        return self._source.name(row)

    def select(self, rows: Index) -> Source:
        return Placed(self._source.select(rows), self._device)


def lazy(values: Any) -> Source | None:
    """The source that values are, or that a memory map makes; None for what is held in memory.

    Args:
        values: anything that was given as x.
    """
    if isinstance(values, Source):
        return values
    if isinstance(values, np.memmap) and getattr(values, "_mmap", None) is not None:
        return MemoryMap(values)
    return None


def stacked(examples: Sequence[Any]) -> Any:
    """Examples as one structure with a row for each.

    Args:
        examples: numbers, arrays or tensors of one shape, or dicts or tuples of such.
    """
    from torch.utils.data import default_collate

    try:
        if all(type(example) is np.ndarray for example in examples):  # the same, in a fifth of the time
            return torch.from_numpy(np.stack(examples))
        return default_collate(list(examples))
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        shapes = shown(sorted({str(np.shape(t)) for one in examples for t in pytree.tree_leaves(one)}))
        raise BadInput(f"The examples of a source should be arrays of one shape. Found {shapes}.") from error


def read(source: Source, rows: Index, *, finite: bool) -> Any:
    """Some rows of a source, looked at.

    Args:
        source: any.
        rows: the rows' numbers.
        finite: whether NaN and infinity are refused.
    """
    x = source.read(rows)
    for t in pytree.tree_leaves(x):
        if not isinstance(t, Tensor) or t.dim() == 0 or len(t) != len(rows):
            found = f"{type(t).__name__} of shape {tuple(np.shape(t))}"
            raise BadInput(f"A source's read should return tensors with the {len(rows)} rows asked for. Found {found}.")
        if finite and t.is_floating_point() and t.numel():
            _refuse_not_finite(source, rows, t)
    return x


def _refuse_not_finite(source: Source, rows: Index, t: Tensor) -> None:
    if torch.isfinite(torch.stack(torch.aminmax(t))).all():  # NaN passes through both
        return
    wrong = (~torch.isfinite(t)).reshape(len(t), -1).any(1)
    row = int(rows[int(wrong.nonzero()[0])])
    raise BadInput(f"x should hold finite numbers. Found NaN or infinity in {source.name(row)}; mend or leave it out.")
