"""Initial weights from a file: `[model] weights` names a model file, or a run whose model training begins with."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from polyfed.core.errors import BadInput, cut, shown
from polyfed.core.problem import is_adapter, is_peft
from polyfed.core.settings import Settings

MODEL = "model.safetensors"


def model_file(path: str) -> Path:
    """The file that `model.weights` names, whole: a run's model, or the file itself."""
    found = Path(path).resolve()
    return found / MODEL if found.is_dir() else found


def begin_with(module: nn.Module, path: Path) -> None:
    """Give a module the weights of a model file; one of another shape is refused.

    Args:
        module: it is changed. Of adapters (peft), the file need not have the base.
        path: a model.safetensors.
    """
    arrays, own = _read(path), module.state_dict()
    base = {name for name in own if is_peft(module) and not is_adapter(module, name)}
    wrong = [f"it has {shown(name)}, which the model does not have" for name in arrays if name not in own]
    wrong += [f"it has no {shown(name)}" for name in own if name not in arrays and name not in base]
    for name, value in own.items():
        found = arrays.get(name, value)
        if value.shape == () and found.shape == (1,):  # a file has one number as an array
            arrays[name] = found = found.reshape(())
        if found.shape != value.shape:
            wrong.append(f"its {shown(name)} has the shape {tuple(found.shape)}, the model's {tuple(value.shape)}")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BadInput(
            f"model.weights should be of the model that is trained. Found {shown(str(path))}: {wrong[0]}{more}."
        )
    module.load_state_dict(arrays, strict=not base)


def without_lost_weights(table: Settings) -> Settings:
    """[model] of a run that has begun: it no longer needs the file that it began with, if all of it was trained."""
    path = table.get("weights")
    lost = isinstance(path, str) and not model_file(path).exists() and not table.get("freeze")
    return {key: value for key, value in table.items() if key != "weights"} if lost else table


def _read(path: Path) -> dict[str, Tensor]:
    if path.name == MODEL and path.parent.is_dir() and not path.exists():
        raise BadInput(
            f"model.weights names {shown(str(path.parent))}, which has no model yet; resume that run, or name another."
        )
    try:
        return dict(load_file(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise BadInput(
            "model.weights should be a model file, model.safetensors, or the directory of a finished run. Found "
            f"{shown(str(path))}, which cannot be read: {cut(str(error), 100)}."
        ) from error
