"""What trials of engines share: requests cut short, what a choice depends on, and the clock."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.core.federation import Federation, Index
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.structure import leaves
from polyfed.core.work import works

Facts = dict[str, Any]
REPEATS = 3  # of what is timed


def can_be_cut(request: Request) -> bool:
    """Whether a request's work is so many local steps."""
    return {"steps", "epochs"} <= {field.name for field in fields(works[request.work].options)}


def cut(request: Request, steps: int) -> Request:
    """A request for so many local steps; as it is, where its work is not about steps."""
    if not can_be_cut(request):
        return request
    return replace(request, options={**request.options, "steps": steps, "epochs": 0})


def local_steps(request: Request, rows: Index) -> Index:
    """How many steps clients with so many rows take; 1 where the work is not about steps."""
    if not can_be_cut(request):
        return np.ones_like(rows)
    options: Any = works[request.work].parse(request.options)
    if options.steps:
        return np.full_like(rows, options.steps)
    batch = int(options.batch_size or max(1, int(rows.max(initial=1))))
    steps: Index = int(max(options.epochs, 1)) * np.maximum(-(-rows // batch), 1)
    return steps


def depends_on(part: Part, layers: Layers, request: Request, clients: int) -> Facts:
    """All that a choice for a model's work depends on, the machine aside: plain values.

    Args:
        part: the model and its data.
        layers: around the work.
        request: that asks for it.
        clients: how many go at once, or 0 where that does not matter.
    """
    from polyfed import __version__

    problem, work = part.problem, works[request.work]
    options: Any = work.parse(request.options)
    rows = part.federation.examples
    shape = [getattr(options, name, None) for name in ("steps", "epochs", "batch_size", "split", "optimizer")]
    return {
        "model": [[name, list(p.shape), p.requires_grad] for name, p in problem.model.named_parameters()],
        "modules": [f"{type(module).__qualname__}({module.extra_repr()})" for module in problem.model.modules()],
        "objectives": [[o.name, _named(o.loss)] for o in problem.objectives],
        "type": [str(problem.dtype), problem.autocast],
        "inputs": _inputs(part.federation),
        "rows": int(rows.max()).bit_length(),  # of the largest client, in powers of two
        "work": [request.work, *shape],
        "layers": [type(layer).__qualname__ for layer in layers.on(work)],
        "clients": clients,
        "versions": [torch.__version__, __version__, _code()],
    }


@cache
def _code() -> str:
    """A checksum of the engines' code: with other kernels another way may be the fastest."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:8]


def _inputs(federation: Federation) -> list[Any]:
    """Shapes and types of an example; none where it cannot be read: the work itself will say why."""
    with suppress(Exception):  # a reader, and what prepares its examples, are the user's own
        one = federation.rows("train", int(federation.examples.argmax()))[:1]
        return [[list(t.shape[1:]), str(t.dtype)] for t in leaves(federation.take(torch.from_numpy(one)).x)]
    return []


def _named(loss: Any) -> str:
    return loss if isinstance(loss, str) else str(getattr(loss, "__qualname__", type(loss).__qualname__))


def machine(device: torch.device) -> list[Any]:
    """What tells one device from another: its name and memory, or the processor's and its cores."""
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        return [about.name, about.total_memory]
    return [_processor(), cores()]


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, ValueError, StopIteration):  # another system
        return platform.processor() or platform.machine()


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long a call takes by a clock."""
    start = clock()
    call()
    return clock() - start


def compared(*calls: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """The least seconds that each of some calls takes, in turns: whatever else goes on only adds to them."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for times, call in zip(found, calls, strict=True):
            times.append(seconds(call, clock))
    return [min(times) for times in found]


def gpu_clock() -> float:
    """The time when a GPU has done all that it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


def some_of(request: Request, places: list[int]) -> Request:
    """A request for those of its clients that stand at these places."""
    each = {name: rows[places] for name, rows in request.each.items()}
    folded: Tensor | None = None if request.folded is None else request.folded[places]
    return replace(request, each=each, folded=folded)
