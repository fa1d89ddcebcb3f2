"""What a trained model says of rows: classes, probabilities or numbers, an array for each objective."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed.core.errors import BadInput, cut, shown
from polyfed.core.inputs import Inputs, by_path
from polyfed.core.problem import Objective, Problem
from polyfed.core.structure import Nested, arguments, leaves, length, mapped, tensors
from polyfed.core.tables import chosen, columns_of, features, is_frame
from polyfed.experiment.rebuilding import Origin

CLASSES = ("cross-entropy", "cross-entropy-of-sigmoid")  # losses of class numbers


def predict(origin: Origin, name: str, problem: Problem, x: Any, proba: bool, batch: int) -> dict[str, NDArray[Any]]:
    """What a model says of some rows.

    Args:
        origin: of the run.
        name: of the model.
        problem: the trained model, in evaluation mode, and its objectives.
        x: the rows, as the run's data had them.
        proba: whether probabilities are wanted.
        batch: how many rows are worked on at a time.
    """
    if proba:
        _check_probabilities(origin.table(name).get("algorithm", {}).get("loss"))
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise BadInput(f"batch should be a whole number from 1 on. Found {shown(batch)}.")
    prepare = origin.prepare(name)
    rows = as_inputs(x, origin.inputs(name))
    if prepare is None and not all(bool(t.isfinite().all()) for t in leaves(rows) if t.is_floating_point()):
        raise BadInput("The inputs should be finite numbers. Found NaN or infinity; fill them, or leave the rows out.")
    outputs = _outputs(problem, rows, prepare, batch)
    told = origin.classes(name)
    return {
        objective.name: _said(objective, outputs[objective.name], told.get(objective.name, told.get("", ())), proba)
        for objective in problem.objectives
    }


def as_inputs(x: Any, inputs: Inputs | None) -> Nested:
    """Rows as the run's data had them: from arrays, or from the columns of a table."""
    if inputs is None:
        return tensors(features(x, columns_of(x), whole=False) if is_frame(x) else x)
    if not is_frame(x):
        return inputs.joined(inputs.checked(by_path(tensors(x))))
    arrays = {}
    for name, array in inputs.arrays.items():
        if not array.columns and len(inputs.arrays) > 1:
            raise BadInput(f"The run's inputs {shown(list(inputs.arrays))} were no table's columns; give arrays.")
        columns: Any = list(array.columns) or columns_of(x)
        made = chosen(x, columns if array.shape or not array.columns else columns[0], str, whole=False)
        arrays[name] = made.reshape(len(made), *array.shape) if made[:1].numel() == _size(array.shape) else made
    return inputs.joined(inputs.checked(arrays))


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _check_probabilities(loss: Any) -> None:
    if loss is not None and loss != "logistic":
        raise BadInput(
            f"Probabilities come with algorithm.loss = 'logistic'. Found {shown(loss)}, whose scores are none; take "
            "classes."
        )


def applied(problem: Problem, x: Nested) -> Any:
    """The module's output for prepared rows, floats in the type that it was trained in, and as it was computed then."""
    cast = mapped(lambda t: t.to(problem.dtype) if t.is_floating_point() else t, x)
    positions, named = arguments(problem.model, cast)
    with problem.casting(torch.device("cpu")):
        return problem.model(*positions, **named)


def _outputs(problem: Problem, x: Nested, prepare: Any, batch: int) -> dict[str, Tensor]:
    """What each objective sees of the output, over all rows."""
    rows = length(x)
    if not rows:
        raise BadInput("There should be a row to predict. Found none.")
    found: dict[str, list[Tensor]] = {name: [] for name in problem.names}
    with torch.no_grad():
        for start in range(0, rows, batch):
            piece = mapped(itemgetter(slice(start, start + batch)), x)
            try:
                outputs = applied(problem, prepare(piece) if prepare else piece)
            except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
                why = cut(f"{type(error).__name__}: {error}")
                raise BadInput(f"The model cannot be applied to the data: {why}.") from error
            for k, name in enumerate(problem.names):
                found[name].append(_one(name, problem.output(k, outputs)))
    return {name: torch.cat(pieces) for name, pieces in found.items()}


def _one(name: str, output: Any) -> Tensor:
    if isinstance(output, Tensor) and output.dim():
        return output
    raise BadInput(f"The objective {name!r} sees no single array of the model's output. Found {shown(type(output))}.")


def _said(objective: Objective, output: Tensor, texts: Any, proba: bool) -> NDArray[Any]:
    """Classes, probabilities or numbers, by the loss that the output was trained with."""
    if objective.loss in CLASSES or objective.classes is not None:
        scores = output.sigmoid() if objective.loss == "cross-entropy-of-sigmoid" else output
        if proba and objective.classes is None:
            return _array(scores.softmax(-1))
        return _array(output) if proba else _named(_array(output.argmax(-1)), texts)
    single = output.squeeze(1) if output.dim() == 2 and output.shape[1] == 1 else output
    if objective.loss == "binary":
        return _array(single.sigmoid()) if proba else _named(_array((single > 0).long()), texts)
    return _array(single)


def _named(numbers: NDArray[Any], texts: Any) -> NDArray[Any]:
    """Numbers of classes as what they stand for."""
    if not texts or int(numbers.max()) >= len(texts):
        return numbers
    found: NDArray[Any] = np.asarray(texts)[numbers]
    return found


def _array(values: Tensor) -> NDArray[Any]:
    plain = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
    return np.asarray(plain.detach().cpu().numpy())


def columns(predictions: Mapping[str, NDArray[Any]], classes: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Predictions as columns of a table: 'name', or 'name.0', 'name.1', ...; probabilities by their classes' names."""
    found: dict[str, NDArray[Any]] = {}
    for name, values in predictions.items():
        if values.ndim > 2:
            raise BadInput(f"The predictions of {name!r} are of shape {values.shape}, no table: write an .npz file.")
        texts = classes.get(name, classes.get("", ()))
        if values.ndim == 1:
            found[name] = values
        else:
            ends = texts if len(texts) == values.shape[1] else range(values.shape[1])
            found |= {f"{name}.{end}": values[:, i] for i, end in enumerate(ends)}
    return found
