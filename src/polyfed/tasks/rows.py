"""What people give as X and y: a table with the task of every row in a column, one task's rows, or a list of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target

from polyfed.core.errors import BadInput, nearest, shown

Index = NDArray[np.int64]
Method = TypeVar("Method", bound=Callable[..., Any])

MANY = 5  # unknown tasks that a sentence names


class BadRows(BadInput, ValueError):
    """Rows or labels that no model can be fitted to: scikit-learn's tools look for a ValueError."""


class Split(NamedTuple):
    """A table without its task column, and that column."""

    features: Any
    column: NDArray[Any]


def offered(check: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """scikit-learn's `available_if`: `hasattr` is false for estimators that the check refuses."""
    return cast(Callable[[Method], Method], available_if(check))


def is_list(X: Any) -> bool:
    """Whether X has one array of rows a task: its first entry has two dimensions."""
    if sparse.issparse(X) or hasattr(X, "columns"):
        return False
    if isinstance(X, Sequence):
        return bool(len(X)) and (sparse.issparse(X[0]) or hasattr(X[0], "columns") or np.ndim(X[0]) == 2)
    return len(getattr(X, "shape", ())) == 3


def split(X: Any, task: str | int) -> Split:
    """The task column, by its name or its number, and the other columns."""
    if is_list(X):
        raise BadRows(f"With task={task!r} give one table with a row an example. Found a list: one X per task.")
    if hasattr(X, "columns"):
        names = list(X.columns)
        name = names[_position(task, names)]
        if names.count(name) > 1:
            raise BadRows(f"The task column should be one column. Found {names.count(name)} of the name {shown(name)}.")
        return Split(X[[other for other in names if other != name]], np.asarray(X[name]))
    X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
    if len(X.shape) != 2:
        raise BadRows(f"With task={task!r} X should have rows and columns. Found an array of shape {tuple(X.shape)}.")
    at = _position(task, [None] * X.shape[1])
    others = np.arange(X.shape[1]) != at
    if sparse.issparse(X):
        X = X.tocsc()
        return Split(X[:, np.flatnonzero(others)].tocsr(), X[:, [at]].toarray().ravel())
    X = np.asarray(X)
    return Split(X[:, others], X[:, at])


def _position(task: str | int, names: list[Any]) -> int:
    if isinstance(task, str):
        if task not in names:
            known = [name for name in names if isinstance(name, str)]
            where = nearest(task, known) if known else " X has no column names: give the column's number."
            raise BadRows(f"The task column {shown(task)} should be a column of X.{where}")
        return names.index(task)
    if not -len(names) <= task < len(names):
        raise BadRows(f"The task column should be one of the {len(names)} columns of X. Found number {task}.")
    return int(task) % len(names)


def tasks_of(column: NDArray[Any]) -> tuple[NDArray[Any], Index]:
    """The different tasks, in order, and which of them each row has."""
    seen: dict[Any, int] = {}  # much faster than sorting a million texts
    try:
        found = np.fromiter((seen.setdefault(task, len(seen)) for task in column.tolist()), np.int64, len(column))
        if missing := [number for task, number in seen.items() if _is_missing(task)]:
            rows = int(np.isin(found, missing).sum())
            raise BadRows(f"Every row should have a task. Found {rows} rows whose task is missing.")
        tasks = sorted(seen)
    except TypeError:
        raise BadRows("Tasks should all be numbers, or all be texts. Found several kinds in the task column.") from None
    place = np.empty(len(tasks), dtype=np.int64)
    place[[seen[task] for task in tasks]] = np.arange(len(tasks))
    return np.array(tasks, dtype=column.dtype), place[found]


def _is_missing(value: Any) -> bool:
    try:
        return value is None or not bool(value == value)  # NaN is not itself
    except TypeError:  # pandas.NA is neither
        return True


def known_tasks(column: NDArray[Any], tasks: NDArray[Any]) -> Index:
    """The number of each row's task among those that were fitted."""
    values, which = tasks_of(column)
    number = {task: t for t, task in enumerate(tasks.tolist())}
    if strange := [value for value in values.tolist() if value not in number]:
        some = ", ".join(shown(value) for value in strange[:MANY]) + (", ..." if len(strange) > MANY else "")
        raise BadRows(
            f"Tasks to predict should be among the {len(tasks)} that were fitted. Found {some}. Give their rows to "
            "add_task; in cross-validation, cut by task: StratifiedKFold().split(X, task_column)."
        )
    return np.array([number[value] for value in values.tolist()], dtype=np.int64)[which]


def new_tasks(column: NDArray[Any], tasks: NDArray[Any]) -> tuple[NDArray[Any], Index]:
    """The different tasks in a column, none of which was fitted, and which of them each row has."""
    values, which = tasks_of(column)
    if old := [value for value in values.tolist() if value in tasks.tolist()]:
        some = ", ".join(map(shown, old[:MANY]))
        raise BadRows(f"A task to add should be new. Found {some}, fitted already: fit all rows again for them.")
    tasks_of(np.concatenate([tasks.astype(object), values.astype(object)]))  # refuses texts beside numbers
    return values, which


def positions(which: Index, m: int) -> list[Index]:
    """The rows of each of m tasks."""
    return np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which, minlength=m))[:-1])


def grouped(X: Any, y: NDArray[Any], which: Index, m: int) -> tuple[list[Any], list[NDArray[Any]]]:
    """The rows of each task, in their order."""
    each = positions(which, m)
    return [X[rows] for rows in each], [y[rows] for rows in each]


def classes_of(ys: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The classes in all tasks together, at least two."""
    every = np.concatenate(ys)
    if (kind := type_of_target(every, input_name="y")) not in ("binary", "multiclass"):
        raise BadRows(f"Unknown label type: {kind}. Labels should be classes; loss='squared' is for numbers.")
    classes: NDArray[Any] = np.unique(every)
    if len(classes) < 2:
        raise BadRows(f"Labels should be of at least two classes. Found one class, {shown(classes[0].item())}.")
    return classes


def targets(y: NDArray[Any], classes: NDArray[Any] | None) -> list[NDArray[np.float64]]:
    """What each linear model is fitted to: the numbers; the second class against the first; each against the rest."""
    if classes is None:
        return [np.asarray(y, dtype=np.float64)]
    positive = classes[1:] if len(classes) == 2 else classes
    return [np.where(y == one, 1.0, -1.0) for one in positive]
