"""Reading ahead: while a step runs, threads read the next batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

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
        read: from row numbers to their examples; called by several threads, but here for what it keeps.
        batches: the row numbers of each batch.
    """
    coming = iter(batches)
    waiting: deque[tuple[Index, Future[Nested] | None]] = deque()
    with ThreadPoolExecutor(THREADS, "polyfed-read") as pool:
        try:
            depth = 1  # until the size of a batch is known
            while True:
                while len(waiting) <= depth and (index := next(coming, None)) is not None:
                    waiting.append((index, None if read.has(index) else pool.submit(read, index)))
                if not waiting:
                    return
                index, future = waiting.popleft()
                x = read(index) if future is None else future.result()
                depth = _depth(x)
                yield index, x
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _depth(x: Nested) -> int:
    """How many batches of this size are read ahead."""
    size = sum(t.numel() * t.element_size() for t in leaves(x))
    return min(AHEAD, max(1, MOST // max(size, 1)))
