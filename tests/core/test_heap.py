"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_freed_memory_stays_with_the_process() -> None:
    """A large tensor comes from the heap, which keeps it when it is freed; by default it is mapped, and unmapped."""
    script = (
        "import ctypes, sys, torch\n"
        "from polyfed.core.heap import keep_freed_memory\n"
        "kept = sys.argv[1] == 'keep' and keep_freed_memory()\n"
        "libc = ctypes.CDLL(None)\n"
        "names = 'arena ordblks smblks hblks mapped usmblks fsmblks uordblks fordblks keepcost'.split()\n"
        "class Info(ctypes.Structure): _fields_ = [(name, ctypes.c_size_t) for name in names]\n"
        "libc.mallinfo2.restype = Info\n"
        "before = libc.mallinfo2()\n"
        "tensor = torch.ones(4 << 20)\n"
        "during = libc.mallinfo2()\n"
        "del tensor\n"
        "after = libc.mallinfo2()\n"
        "print(kept, during.mapped - before.mapped, during.arena - after.arena)\n"
    )

    def run(how: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True)
        if "mallinfo2" in done.stderr:
            pytest.skip("this system's C library is not a glibc of 2.33 or later")
        return done.stdout.split()

    assert run("keep") == ["True", "0", "0"]
    assert int(run("plain")[1]) >= 16 << 20
