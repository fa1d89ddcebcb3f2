"""What is tried on a few rows before the first round: a slip is a sentence then, and no other model later."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from polyfed.client.autograd import Autograd
from polyfed.core.errors import BadInput, cut
from polyfed.core.federation import Federation
from polyfed.core.problem import Batch, Outputs, Problem
from polyfed.core.structure import leaves, length, names_of

ROWS = 5  # of a trial batch: no likely number of classes, layers or heads, so that rows are told from those
SEEN = 1000  # rows among which two with different targets are looked for


def check_outputs(problem: Problem, outputs: Outputs, batch: Batch) -> None:
    """Refuse outputs that a named loss cannot take.

    Args:
        problem: the objectives.
        outputs: the model's, for this batch.
        batch: some rows.
    """
    for k, objective in enumerate(problem.objectives):
        if not isinstance(objective.loss, str):  # the user's own loss knows its own outputs
            continue
        output, own = problem.output(k, outputs), f"Objective {objective.name!r}: the loss {objective.loss!r}"
        if not isinstance(output, Tensor):
            raise BadInput(
                f"{own} takes one tensor. Found {names_of(output)}; pick it with Objective(output=...), a key, a "
                f"position or a function of the module's output."
            )
        target = problem.target(k, batch.targets)
        if objective.loss in ("squared", "binary") and not objective.classes and output.numel() != target.numel():
            raise BadInput(
                f"{own} compares outputs with as many targets. Found outputs of shape {tuple(output.shape)} and "
                f"targets of shape {tuple(target.shape)} for {batch.rows} examples."
            )


def check_losses(problem: Problem, federation: Federation, autograd: Autograd) -> None:
    """Refuse a loss per example that mixes the examples of a batch: a mean in place of one value each, or shapes that
    broadcast. Engines make batches in different ways, and would train different models.

    Only the loss is judged, not a module that mixes rows: outputs are computed once, of two examples that alternate;
    then either of them takes all the places.

    Args:
        problem: the objectives.
        federation: the rows.
        autograd: of the problem.
    """
    start = problem.initial()
    for k, objective in enumerate(problem.objectives):
        if isinstance(objective.loss, str) or objective.per != "example":
            continue
        batch = federation.take(_alternating(federation, objective.name))
        outputs = autograd.outputs(start["x"], start["buffers"], batch, train=False)
        params = problem.split(start["x"])
        given = [(what, problem.argument(k, what, outputs, batch, params)) for what in objective.takes]
        if _mixes(objective.values["loss"], given):
            shapes = ", ".join(f"{what} {tuple(t.shape)}" for what, t in given if isinstance(t, Tensor))
            raise BadInput(
                f"Objective {objective.name!r}: its loss of one example depends on the others of its batch; say "
                f"per='batch' and return one number where that is meant, else mend its shapes. Found {shapes}."
            )


def _alternating(federation: Federation, objective: str) -> Tensor:
    """Row numbers a, b, a, b, a: of two examples with different targets, where there are such."""
    rows = np.unique(federation.train.order[:SEEN])
    target = federation.targets.get("", federation.targets.get(objective))
    second = len(rows) - 1
    if target is not None:
        values = target[torch.from_numpy(rows)].reshape(len(rows), -1)
        differ = (values != values[:1]).any(1)
        second = int(differ.long().argmax()) if bool(differ.any()) else second
    return torch.from_numpy(rows[np.arange(ROWS) % 2 * second])


def _mixes(loss: Callable[..., Tensor], given: Sequence[tuple[str, Any]]) -> bool:
    """Whether a loss of either example changes when the other one leaves the batch."""
    by_row = [t for what, value in given if what != "parameters" for t in tree_leaves(value)]
    if any(isinstance(t, Tensor) and t.dim() and len(t) != ROWS for t in by_row):
        return False  # it cannot be told which of its numbers are whose

    def value(rows: Tensor) -> Tensor:
        def of(t: Tensor) -> Tensor:
            return t[rows] if t.dim() else t

        torch.manual_seed(0)  # the same noise, for a loss that draws some
        found = (v if what == "parameters" else tree_map_only(Tensor, of, v) for what, v in given)
        return loss(*found).double()

    together = value(torch.arange(ROWS))
    alone = ((place, value(torch.full((ROWS,), place))) for place in (0, 1))
    return any(not torch.allclose(together[i], v[i], rtol=1e-3, atol=1e-6, equal_nan=True) for i, v in alone)


def check_augment(federation: Federation, batch: Batch) -> None:
    """Refuse an `augment` that cannot be applied to some rows, or does not give as many back.

    Args:
        federation: whose.
        batch: some rows, which stay as they are.
    """
    if federation.augment is None:
        return
    said = "A federation's augment should take (x, key), a batch and a whole number to seed from, and return the batch"
    try:
        with torch.random.fork_rng(devices=[]):
            made = federation.augment(copy.deepcopy(batch.x), 0)
    except Exception as error:
        raise BadInput(f"{said}. Found {cut(f'{type(error).__name__}: {error}', 160)}.") from error
    found = tree_leaves(made)
    if not found or not all(isinstance(t, Tensor) for t in found) or length(made) != batch.rows:
        raise BadInput(f"{said}. Found {names_of(made)} for {batch.rows} examples.")


def why_not(error: Exception, batch: Batch) -> str:
    """Why the model could not be applied to some rows, in torch's words, and the remedy where there is a usual one."""
    why = cut(f"{type(error).__name__}: {error}", 200)
    whole = next((t.dtype for t in leaves(batch.x) if not t.is_floating_point() and not t.is_complex()), None)
    if whole is None or not any(word in str(error) for word in ("type", "not implemented for")):
        return f"{why}."
    return f"{why}. Found x of {whole}: where the model takes floats, say Federation(prepare=lambda x: x.float())."
