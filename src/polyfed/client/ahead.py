"""Reading ahead: while a step runs, threads read the next batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from polyfed.client.kept import Kept
from polyfed.core.source import Index
from polyfed.core.structure import Nested, leaves

THREADS = 2  # that read for one client
AHEAD = 4  # batches that are read or being read beyond the one in use
MOST = 64 << 20  # bytes that they may have together; one batch is always read ahead


def read_ahead(read: Kept, batches: Iterable[Index]) -> Generator[tuple[Index, Nested]]:
    """Batches of row numbers, each with what was read for it, in their order.

    An error of a reader comes up in the place of its batch. The threads end with the iteration: nothing is left that a
    process could be forked around.

    Args:
        read: from row numbers to their examples; called by several threads, and for rows that it keeps by this one.
        batches: the row numbers of each batch.
    """
    coming = iter(batches)
    waiting: deque[tuple[Index, Tensor | Future[Nested]]] = deque()
    pool: ThreadPoolExecutor | None = None
    depth = 0  # until the size of a batch is known: one is read ahead
    try:
        while True:
            while len(waiting) <= (depth or 1) and (index := next(coming, None)) is not None:
                found: Tensor | Future[Nested] | None = read.find(index)
                if found is None:
                    pool = pool or ThreadPoolExecutor(THREADS, "polyfed-read")
                    found = pool.submit(read, index)
                waiting.append((index, found))
            if not waiting:
                return
            index, source = waiting.popleft()
            x = read.kept(source) if isinstance(source, Tensor) else source.result()
            depth = depth or _depth(x)
            yield index, x
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _depth(x: Nested) -> int:
    """How many batches of this size are read ahead."""
    size = sum(t.numel() * t.element_size() for t in leaves(x))
    return min(AHEAD, max(1, MOST // max(size, 1)))
