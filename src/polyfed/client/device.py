"""Where tensors live: the device by name, data resident on it, and how exact its products are."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator

from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation, Rows

HOST = torch.device("cpu")
# torch then looks for a GPU without beginning CUDA, which processes that are forked afterwards could not use
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def _is_there(name: str) -> str:
    """Refuses a GPU that is not there before a run is begun."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("'auto' or 'cpu', as torch can see no GPU here")
    return name


Device = Annotated[Literal["auto", "cpu", "cuda"], AfterValidator(_is_there)]


def resolve(device: str) -> torch.device:
    """A device by name; 'auto' is the GPU where there is one."""
    try:
        _is_there(device)
    except ValueError as error:
        raise BadInput(f"engine.device should be {error}.") from None
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def arrays_on(device: torch.device, federation: Federation) -> Federation:
    """The same federation with its arrays on the device; who owns which row stays with the host."""
    return federation if device == HOST else federation.moved(device)


def resident(device: torch.device, federation: Federation) -> Federation:
    """A federation whose arrays are on the device with its row orders there, too: a program may draw its batches
    without the host."""
    there = copy.copy(federation)  # not `replace`: its checks read rows as arrays
    for split in ("train", "valid", "test"):
        rows: Rows | None = getattr(federation, split)
        if rows is not None:
            order: Any = torch.as_tensor(rows.order, device=device)
            object.__setattr__(there, split, replace(rows, order=order))
    return there


@contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """TF32 products inside, if asked for."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def no_memory(error: BaseException | None) -> bool:
    """Whether a device's memory has run out, whoever says so: torch, a library of it, or what has compiled a step."""
    while error is not None:
        text = str(error)
        if isinstance(error, torch.cuda.OutOfMemoryError) or any(sign in text for sign in NO_MEMORY):
            return True
        error = error.__cause__
    return False


NO_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
