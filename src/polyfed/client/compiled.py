"""Programs for torch's compiler, each with code of its own."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

Program = Callable[..., Any]


def own_code(f: Program, *about: Any) -> Program:
    """The same function, as code that no other program has.

    The compiler keeps what it has compiled with the code that it was made of, and from sizes that differ between two
    calls of one code concludes that they vary. So the code of one model should not be that of another.

    Args:
        f: what is called.
        about: what the code is for: with the same, what was learnt of it before holds.
    """

    def program(*arguments: Any, **named: Any) -> Any:
        return f(*arguments, **named)

    code: CodeType = program.__code__
    program.__code__ = code.replace(co_name=f"program_{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}")
    return program


def replayed(f: Program, device: torch.device) -> Program:
    """A program that is compiled; on a GPU, what lies between two looks at numbers is one launch.

    What it gives lies in memory that the next call after `next_step` writes over.
    """
    if device.type != "cuda" or threading.current_thread() is not threading.main_thread():
        return torch.compile(f)  # torch's graphs belong to one thread
    return torch.compile(f, mode="reduce-overhead")


def next_step() -> None:
    """What replayed programs gave before is not needed any more."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch has no types here
