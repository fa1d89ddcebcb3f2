"""A program of tensors as one CUDA graph: recorded once, then replayed without the host."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Program = Callable[..., dict[str, Tensor]]


@cache
def _side(gpu: int) -> Any:
    """The stream that a GPU's programs are recorded on: torch's own is of whichever GPU came first, and graphs share
    memory where they were recorded on one stream."""
    return torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]  # torch has no types here


class Waits(RuntimeError):
    """A program cannot be recorded: its host waits for numbers of the device, or draws some itself."""


class Captured:
    """Copies arguments, from wherever they are, into fixed places on the device, replays, and returns copies of the
    results.

    As nothing but the copies outlives a replay, all graphs may share one pool of memory. `Waits` is raised before
    anything is recorded: a recording that fails harms torch's allocator (before 2.12).
    """

    def __init__(self, program: Program, arguments: Any, device: torch.device, pool: Any) -> None:
        self._places = pytree.tree_map(lambda t: t.to(device, copy=True) if isinstance(t, Tensor) else t, arguments)
        side = _side(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                program(*self._places)  # compile and choose kernels before the recording
                with recordable():
                    program(*self._places)
        finally:  # also where it fails: the places' memory may be somebody else's then
            torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=side):
            self._results = program(*self._places)

    def __call__(self, arguments: Any) -> dict[str, Tensor]:
        for place, value in zip(pytree.tree_leaves(self._places), pytree.tree_leaves(arguments), strict=True):
            if isinstance(place, Tensor):
                place.copy_(value, non_blocking=True)  # CUDA itself copies what may move before it goes on
        self._graph.replay()
        return {name: a.clone() for name, a in self._results.items()}


@contextmanager
def recordable() -> Iterator[None]:
    """Inside, what a recording cannot hold ends in `Waits`: an operation that the host waits for, and a draw of the
    host's, which every replay would repeat."""
    before, drawn = torch.cuda.get_sync_debug_mode(), _drawn()
    try:
        _wait_for_nothing("error")
        yield
    except RuntimeError as error:
        if "synchronizing" in str(error):  # torch's only sign of it
            raise Waits("its host looks at numbers of the GPU") from error
        raise
    finally:
        _wait_for_nothing(before)
    if _drawn() != drawn:
        raise Waits("its host draws numbers at random")


def _wait_for_nothing(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")  # is a prototype
        torch.cuda.set_sync_debug_mode(mode)


def _drawn() -> tuple[Any, ...]:
    """How far the host's generators are."""
    of_numpy = np.random.get_state(legacy=False)
    return torch.default_generator.get_state().numpy().tobytes(), random.getstate(), repr(of_numpy)
