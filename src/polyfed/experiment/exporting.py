"""A trained model for use without polyfed: torch.export's .pt2, or .onnx."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from polyfed.core.errors import BadInput, cut, shown
from polyfed.core.inputs import Inputs, by_path
from polyfed.core.problem import Problem
from polyfed.core.structure import Nested, leaves, mapped
from polyfed.experiment.predicting import applied
from polyfed.experiment.rebuilding import Origin
from polyfed.run.directory import write

ROWS = 3  # of the sample that is traced; 0 and 1 would be taken for constants
CLOSE = {"rtol": 1e-3, "atol": 1e-4}  # what is written is the same function, in other kernels


class Outputs(nn.Module):
    """A model as it is exported: of one argument, its inputs, with an output for each objective."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem, self.model = problem, problem.model

    def forward(self, x: Nested) -> dict[str, Any]:
        outputs = applied(self.problem, x)
        return {name: self.problem.output(k, outputs) for k, name in enumerate(self.problem.names)}


def export(origin: Origin, name: str, problem: Problem, path: Path) -> None:
    """Write a model, once what would be written gives the model's outputs.

    Args:
        origin: of the run.
        name: of the model.
        problem: the trained model, in evaluation mode, and its objectives.
        path: a .pt2 or .onnx file.
    """
    if path.suffix not in WRITERS:
        raise BadInput(f"A model is exported to a .pt2 or an .onnx file. Found {shown(str(path))}.")
    made = WRITERS[path.suffix]
    x = sample(origin, name, problem)
    module = Outputs(problem).eval()
    batch = torch.export.Dim("batch", min=1)
    try:
        program = torch.export.export(module, (x,), dynamic_shapes={"x": pytree.tree_map(lambda t: {0: batch}, x)})
        data, again = made(program, x)
        _compare(module, again, mapped(lambda t: t[:1], x))
    except BadInput:
        raise
    except Exception as error:  # whatever a model does that cannot be traced, or run again
        why = cut(f"{type(error).__name__}: {error}", 160)
        raise BadInput(f"The model cannot be exported with any number of rows: {why}.") from error
    try:
        write(path, data)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}.") from error


def sample(origin: Origin, name: str, problem: Problem) -> Nested:
    """Some rows as the model takes them: of the run's data, or made up where these are not here."""
    if origin.known_data(name):
        federation = origin.federation(name)
        client = int(np.flatnonzero(federation.examples)[0])
        rows = np.resize(federation.rows("train", client)[:ROWS], ROWS)
        x = federation.take(torch.from_numpy(rows)).x
    else:
        data = origin.table(name).get("data", {})
        told = data.get("prepared", data.get("inputs"))
        if told is None:
            raise BadInput(f"{origin.path} does not say what its inputs look like, and so cannot be exported.")
        x = _made_up(Inputs.from_table(told))
    return mapped(lambda t: t.to(problem.dtype) if t.is_floating_point() else t, x)


def _made_up(inputs: Inputs) -> Nested:
    rng = torch.Generator().manual_seed(0)
    return inputs.joined(
        {
            name: torch.randn(ROWS, *a.shape, generator=rng).to(a.dtype)
            if a.dtype.is_floating_point
            else torch.zeros(ROWS, *a.shape, dtype=a.dtype)
            for name, a in inputs.arrays.items()
        }
    )


Made = tuple[bytes, Callable[[Nested], list[Any]]]  # a file, and what it computes


def _pt2(program: Any, x: Nested) -> Made:
    data = io.BytesIO()
    torch.export.save(program, data)
    again: Any = torch.export.load(io.BytesIO(data.getvalue())).module()
    return data.getvalue(), lambda rows: pytree.tree_leaves(again(rows))


def _onnx(program: Any, x: Nested) -> Made:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch needs it)
    except ImportError as error:
        raise BadInput(f"ONNX needs its extra ({error.name}): pip install 'polyfed[onnx]'.") from error
    inputs = list(by_path(x))
    outputs = list(by_path(program.module()(x)))
    with _quiet():
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False, input_names=inputs, output_names=outputs)
    data: bytes = made.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def again(rows: Nested) -> list[Any]:
        given = {name: t.numpy() for name, t in by_path(rows).items()}
        return [torch.from_numpy(np.asarray(a)) for a in session.run(outputs, given)]

    return data, again


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters say of packages that are not needed, and of their own ways."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)


WRITERS: dict[str, Callable[[Any, Nested], Made]] = {".pt2": _pt2, ".onnx": _onnx}


def _compare(module: nn.Module, again: Callable[[Nested], list[Any]], x: Nested) -> None:
    """Refuse to write what does not give the model's outputs."""
    with torch.no_grad():
        wanted, found = leaves(module(x)), again(x)
    if len(wanted) != len(found) or not all(map(_close, wanted, found)):
        raise BadInput("The model that would be written gives other outputs than the run's, and is not written.")


def _close(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.allclose(one, two.to(one.dtype), equal_nan=True, **CLOSE)
