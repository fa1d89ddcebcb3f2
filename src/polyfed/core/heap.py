"""Freed memory is kept by the process, so that training steps avoid page faults.

By default glibc gives large blocks back to the system at once, and every page is faulted in again at the next step: a
third of the time of a small convolution net was that.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
KEPT = 256 << 20  # bytes of address space; what is never touched takes no memory
LARGEST = 32 << 20  # glibc allows no more here


@cache
def keep_freed_memory() -> bool:
    """Once a process, and inherited by its workers; false where the C library is another."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        settings = (M_MMAP_THRESHOLD, LARGEST), (M_TOP_PAD, KEPT), (M_TRIM_THRESHOLD, 2 * KEPT)
        return sum(int(mallopt(option, value)) for option, value in settings) == 3  # 1 for each that was taken
    return False
