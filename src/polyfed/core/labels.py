"""Whether all rows are what the objectives are about: looked at once, before a run, and not two rows of one client."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from polyfed.core.aligning import label_at
from polyfed.core.errors import BadInput, shown
from polyfed.core.federation import SPLITS, Federation, Rows
from polyfed.core.metric import listed
from polyfed.core.problem import Objective, Outputs, Problem
from polyfed.core.structure import Nested

CLASSES = ("cross-entropy", "cross-entropy-of-sigmoid")  # losses of class numbers
Bad = Callable[[Tensor], Tensor]  # which rows are wrong
MEND = "mend or leave out such rows"
SIGNS = "of labels -1 and 1 make (y + 1) / 2"
MOST = 1000  # groups that somebody may have meant: larger numbers are years, codes or amounts


def check_rows(problem: Problem, federation: Federation, outputs: Outputs) -> None:
    """Refuse rows that hold NaN or infinity, and labels that the objective's loss does not know.

    Args:
        problem: the objectives.
        federation: the rows; those that nobody uses, or that belong to an objective which their client does not hold,
            may hold anything.
        outputs: the model's, for some rows: as many as there are classes.
    """
    if federation.prepare is None and not federation.streamed:  # of a source, rows are looked at as they are read
        for where, x in _parts(federation.x):
            if _may_be_wrong(x, -math.inf, math.inf, whole=False):
                _refuse(federation, x, _not_finite, f"{where} should hold finite numbers", None, MEND)
    for k, objective in enumerate(problem.objectives):
        target = federation.targets.get("", federation.targets.get(objective.name))
        if target is None or not isinstance(objective.loss, str):  # the user's own loss knows its own targets
            continue
        output = problem.output(k, outputs)
        low, high, whole, rule = _rule(objective, output)
        if _may_be_wrong(target, low, high, whole=whole):
            said = f"Objective {objective.name!r}: the targets of loss {objective.loss!r} should be {rule}"
            remedy = SIGNS if objective.loss == "binary" and _signs(target) else MEND
            _refuse(federation, target, _outside(low, high, whole), said, objective.name, remedy)
    _check_metrics(problem, federation)


def _check_metrics(problem: Problem, federation: Federation) -> None:
    """Refuse classes and groups that a metric, or a loss that is reported as one, would take for others or for none."""
    for k, name, metric in listed(problem):
        own = problem.names[k]
        whose = f"Objective {own!r}: " + ("its loss" if name == "loss" else f"the metric {name!r}")
        for what, number in metric.classes.items():
            of_target, targets = what == "target", federation.targets
            values = targets.get("", targets.get(own)) if of_target else federation.columns.get(what)
            low = 0 if of_target else -1
            if values is None or not _may_be_wrong(values, low, number - 1, whole=True):
                continue
            if of_target:
                said = f"{whose} should see class numbers 0 to {number - 1}"
                remedy = SIGNS if number == 2 and _signs(values) else "recode them, or choose a metric of such targets"
            else:
                said = f"{whose} should find groups 0 to {number - 1}, or -1 for none, in the column {what!r}"
                remedy = f"recode them, or say groups={_groups(values)}" if _groups(values) else "recode them"
            _refuse(federation, values, _outside(low, number - 1, True), said, own, remedy)


def _groups(values: Tensor) -> int:
    """How many groups a column is about, if it has numbers that can stand for groups; else 0."""
    fit = not _may_be_wrong(values, -1, MOST, whole=True)
    return int(values.max()) + 1 if fit else 0


def missing_labels(problem: Problem, federation: Federation) -> list[str]:
    """What is to be said of labels that are missing; an objective for which nobody has one is refused.

    Args:
        problem: the objectives.
        federation: the rows.
    """
    if not federation.labelled:
        return []
    holds = federation.matrix(problem.names)
    if name := next((name for name, held in zip(problem.names, holds.T, strict=True) if not held.any()), None):
        raise BadInput(f"Some client should have a label for objective {name!r}. Found none in {federation.size} rows.")
    said = []
    for name, labelled in federation.labelled.items():
        if name in ("", *problem.labels):
            gone, what = int((~labelled.bool()).sum()), f"The label {name!r}" if name else "The label"
            said.append(f"{what} is missing in {gone} of {federation.size} rows.")
    if none := [client for client in np.flatnonzero(~holds.any(1)).tolist() if federation.examples[client]]:
        some = ", ".join(map(federation.called, none[:5])) + (f" and {len(none) - 5} more" if len(none) > 5 else "")
        said.append(f"Without a label for any objective, and so of no use in training: {some}.")
    return said + _unmeasured(problem, federation)


def _unmeasured(problem: Problem, federation: Federation) -> list[str]:
    """A sentence for each objective that rows kept aside, or the server's, have no label for."""
    said, allowed = [], federation.allowed(problem.names)
    for k, (name, label) in enumerate(zip(problem.names, problem.labels, strict=True)):
        labelled = None if label is None else federation.labelled.get("", federation.labelled.get(label))
        if labelled is None:
            continue
        for split in SPLITS[1:]:
            rows: Rows | None = getattr(federation, split)
            clients = [] if rows is None else np.flatnonzero(rows.length).tolist()
            mine = (rows[c] for c in clients if rows is not None and allowed[c, k])
            if clients and not any(labelled[torch.from_numpy(own)].any() for own in mine):
                said.append(f"No {split} row has a label for objective {name!r}, which is not measured on them.")
        if federation.server is not None and not labelled[torch.from_numpy(federation.server)].any():
            said.append(f"No row of the server's has a label for objective {name!r}, which is not measured on them.")
    return said


def _parts(x: Nested) -> list[tuple[str, Tensor]]:
    """The tensors of x, and what they are called."""
    if isinstance(x, Tensor):
        return [("x", x)]
    return [(f"x{pytree.keystr(path)}", t) for path, t in pytree.tree_leaves_with_path(x)]


def _rule(objective: Objective, output: Tensor) -> tuple[float, float, bool, str]:
    """The least and the largest target, whether they are whole numbers, and that in words."""
    if objective.loss in CLASSES or objective.classes:
        classes = objective.classes or int(output.shape[-1])
        return 0, classes - 1, True, f"class numbers 0 to {classes - 1}, as the model has {classes} outputs"
    if objective.loss == "binary":
        return 0, 1, False, "0 or 1"
    return -math.inf, math.inf, False, "finite numbers"


def _may_be_wrong(values: Tensor, low: float, high: float, *, whole: bool) -> bool:
    """One pass over all rows, without a copy of them: NaN passes through `aminmax`."""
    if not values.numel() or values.is_complex():
        return False
    if values.dtype == torch.bool:
        values = values.view(torch.uint8)
    least, largest = (float(v) for v in torch.aminmax(values))
    fits = low <= least and largest <= high and math.isfinite(least) and math.isfinite(largest)
    return not fits or (whole and values.is_floating_point() and bool((values != values.floor()).any()))


def _not_finite(values: Tensor) -> Tensor:
    return ~torch.isfinite(values)


def _outside(low: float, high: float, whole: bool) -> Bad:
    def bad(values: Tensor) -> Tensor:
        v = values.double()
        return ~((v >= low) & (v <= high) & torch.isfinite(v) & ((v == v.floor()) if whole else True))

    return bad


def _refuse(federation: Federation, values: Tensor, bad: Bad, rule: str, objective: str | None, remedy: str) -> None:
    """Say where the first bad row is, if somebody uses it."""
    wrong = bad(values.detach().cpu()).reshape(len(values), -1).any(1).numpy()
    for row, whose in _used(federation, wrong, objective):
        found = values[row].detach().cpu().reshape(-1)
        place = int(torch.nonzero(bad(found))[0])
        column = f", column {place}" if values.dim() == 2 else ""
        label = shown(label_at(federation.row_labels, row))
        raise BadInput(
            f"{rule}. Found {found[place].item():g} in row {label}{column}, {whose}; {remedy} ({wrong.sum()} of them)."
        )


def _signs(values: Tensor) -> bool:
    """Whether all of them are -1 or 1, those of clients without the objective aside, which are 0."""
    return bool((values.abs() <= 1).all()) and bool((values == values.round()).all())


def _used(federation: Federation, wrong: NDArray[np.bool_], objective: str | None) -> list[tuple[int, str]]:
    """The first wrong row that somebody uses, and whose it is."""
    held = None if objective is None else federation.holds.get(objective)
    for split in SPLITS:
        rows = getattr(federation, split)
        for client in range(len(federation)) if rows is not None else ():
            mine = rows[client]
            if (held is None or held[client]) and wrong[mine].any():
                return [(int(mine[wrong[mine]][0]), f"of {federation.called(client)}")]
    if federation.server is not None and wrong[federation.server].any():
        return [(int(federation.server[wrong[federation.server]][0]), "of the server's test rows")]
    return []
