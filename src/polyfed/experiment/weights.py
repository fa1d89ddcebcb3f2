"""From a run's files to a module with its weights: the model file, or the newest checkpoint of a run that stopped."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from polyfed.core.algorithm import Algorithm
from polyfed.core.errors import BadInput, cut, shown
from polyfed.core.problem import Problem, is_adapter, is_peft
from polyfed.run.directory import BEST, REPAIR, RunDirectory

TASKS = "tasks."  # before the names of arrays that task methods add to the model file
Arrays = dict[str, Tensor]


def saved_weights(directory: RunDirectory, summary: Mapping[str, Any], best: bool) -> tuple[int, Arrays]:
    """The round and the arrays of the model that a run left, or of the best that it kept."""
    path = directory.path / (BEST if best else "model.safetensors")
    if best and not summary:  # it stopped: the newest checkpoint says which round was the best
        told: Mapping[str, Any] = {"round": _best_so_far(directory)}
        path = directory.path / "best" / f"round-{told['round']:08d}.safetensors"
    elif best:
        told = summary.get("best", {"round": 0})
    else:
        told = {"round": summary["rounds"], **summary}
    if best and not told["round"]:
        raise BadInput(
            f"{directory.path} kept no best model: train with callbacks=['best-model']. Load it without best."
        )
    try:
        data = path.read_bytes()
        arrays = dict(load_tensors(data))
    except (OSError, ValueError, SafetensorError) as error:
        repair = REPAIR.format(path=directory.path)
        raise BadInput(f"{path} cannot be read ({cut(str(error), 80)}). {repair}.") from error
    found = hashlib.sha256(data).hexdigest()
    if told.get("model_sha256", found) != found:
        raise BadInput(
            f"{path} is not the model that this run's result.json is of: the checksums differ. "
            f"{REPAIR.format(path=directory.path)}."
        )
    return int(told["round"]), arrays


def _best_so_far(directory: RunDirectory) -> int:
    found = directory.load()
    told = {} if found is None else found[1].get("callbacks", {})
    return max((int(tree["round"]) for name, tree in told.items() if name.startswith("BestModel")), default=0)


def of_model(arrays: Arrays, name: str) -> Arrays:
    """One model's arrays, of a file of several."""
    return {n.removeprefix(f"{name}."): t for n, t in arrays.items() if n.startswith(f"{name}.")} if name else arrays


def restored(module: nn.Module, arrays: Arrays, path: Path, own_method: bool) -> tuple[nn.Module, Arrays]:
    """A copy of a module with these weights, in evaluation mode; and the arrays that are no weights of it.

    Args:
        module: of the class and sizes that were trained; it is left as it is. Of adapters (peft), it brings the base,
            which a run does not keep.
        arrays: what the run saved of the model.
        path: the run, for an error.
        own_method: whether the method is a user's own, which may have added arrays of any name.
    """
    made = copy.deepcopy(module)
    own = made.state_dict()
    alone = {n for n, t in own.items() if t.shape == () and n in arrays and arrays[n].shape == (1,)}
    arrays = {n: t.reshape(()) if n in alone else t for n, t in arrays.items()}  # a file has one number as an array
    rest = {n: t for n, t in arrays.items() if n not in own}
    strange = [n for n in rest if not own_method and not n.startswith(TASKS)]
    wrong = [f"it has no {shown(n)}" for n in strange]
    base = {n for n in own if is_peft(module) and not is_adapter(module, n)}  # which a run of adapters does not keep
    wrong += [f"the run has no {shown(n)}" for n in own if n not in arrays and n not in base]
    wrong += [
        f"{shown(n)} has the shape {tuple(t.shape)}, the run's {tuple(arrays[n].shape)}"
        for n, t in own.items() if n in arrays and t.shape != arrays[n].shape
    ]  # fmt: skip
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BadInput(f"The model is not the one that {path} trained: {wrong[0]}{more}. Give that one as model=.")
    for name, tensor in (*made.named_parameters(), *made.named_buffers()):
        if name in arrays and tensor.dtype != arrays[name].dtype:
            tensor.data = tensor.data.to(arrays[name].dtype)  # as it was trained, in double precision say
    made.load_state_dict({n: arrays[n] for n in own if n in arrays}, strict=not is_peft(module))
    return made.eval(), rest


def from_checkpoint(
    directory: RunDirectory, parts: Mapping[str, tuple[Problem, Algorithm | None]]
) -> tuple[int, Arrays]:
    """The round and the arrays of a run's newest checkpoint, named as in a model file; parts: what it trained."""
    found = directory.load()
    if found is None:
        raise BadInput(f"{directory.path} has no model yet: it has finished no round that was kept. Resume it first.")
    round, tree = found
    states: Any = tree.get("state", {})
    states = states.get("models", {}) if list(parts) != [""] else {"": states}
    arrays: Arrays = {}
    for name, (problem, method) in parts.items():
        state, start = states.get(name, {}), problem.initial()
        if problem.doubtful and state.get("buffers", start["buffers"]).shape != start["buffers"].shape:
            problem = copy.deepcopy(problem)  # without data, the checkpoint tells that constants did not travel
            problem.without_buffers(problem.doubtful)
            start = problem.initial()
        if {k: getattr(state.get(k), "shape", None) for k in start} != {k: v.shape for k, v in start.items()}:
            raise BadInput(f"The newest checkpoint of {directory.path} is of another model; give that one as model=.")
        own = problem.state_dict(state["x"], state["buffers"])
        own |= {} if method is None else dict(method.extras(state))
        arrays |= {f"{name}.{n}" if name else n: t for n, t in own.items()}
    return round, arrays
