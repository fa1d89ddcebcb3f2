"""What a run that was started from Python says of its models and data: what can be said, and where they come from.

Nothing is pickled. A module is recorded by its class and the shapes of its arrays; it can be made again by itself where
its class takes no arguments or keeps them as `config`, or where `train` was given a function that makes the problem.
"""

from __future__ import annotations

import inspect
import json
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.core.errors import BadInput, shown
from polyfed.core.federation import SPLITS, Federation
from polyfed.core.inputs import Inputs, by_path
from polyfed.core.problem import Objective, Problem
from polyfed.core.registry import Registry
from polyfed.core.settings import Settings
from polyfed.core.structure import Nested, mapped
from polyfed.run.failing import plain_names

T = TypeVar("T")
RECORD = ("model", "objectives", "data", "evaluate", "folder")  # what a run says of itself, and is not asked for again
MOST_NAMES = 10_000  # clients whose names are written down
makers: Registry[Callable[..., Any]] = Registry("function")  # users' own, by 'module:name'


def made(given: Any, kind: type[T], what: str) -> tuple[T, str]:
    """A problem or a federation: given, or made by a function or by what 'module:function' names; and that name, if
    another process can import it.

    Args:
        given: the thing, the function or its name.
        kind: what it should be.
        what: its name in an error.
    """
    if isinstance(given, kind):
        return given, ""
    if isinstance(given, str) and ":" in given:
        path, function = given, makers[given]
    elif inspect.isroutine(given):
        path, function = import_path(given), given
    else:
        wanted = f"a polyfed.{kind.__name__}, or a function that makes one"
        raise BadInput(f"{what} should be {wanted}. Found {shown(given)}.")
    found = function()
    if not isinstance(found, kind):
        raise BadInput(f"{what}: {shown(given)} should return a polyfed.{kind.__name__}. Found {shown(found)}.")
    return found, path


def import_path(thing: Any) -> str:
    """'module:name' of a class or function, where another process can import it; else ''."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    there = isinstance(module, str) and module != "__main__" and getattr(sys.modules.get(module), name, None) is thing
    return f"{module}:{name}" if there else ""


def recorded(problem: Problem, federation: Federation, model_from: str = "", data_from: str = "") -> Settings:
    """The tables [model], [objectives] and [data] of a run.

    Args:
        problem: the model and its objectives.
        federation: the clients' data.
        model_from: the function that made the problem, as 'module:name'.
        data_from: the function that made the federation.
    """
    return {
        "model": _model(problem, model_from),
        "objectives": {o.name: _objective(o) for o in problem.objectives},
        "data": _data(federation, data_from),
    }


def folder_of(settings: Mapping[str, Any]) -> str:
    """Where the code that a record names lies, if that is no installed package; '' if there is none."""
    tables = [settings, *settings.get("models", {}).values()]
    named = [t[kind].get(key, "") for t in tables for kind, key in NAMED if isinstance(t.get(kind), Mapping)]
    for path in named:
        module = path.partition(":")[0]
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and module != "__main__":
            place = Path(file).resolve()
            root = place.parents[module.count(".") + (place.name == "__init__.py")]
            if not any(root.is_relative_to(place) for place in _installed()):
                return str(root)
    return ""


NAMED = (("model", "from"), ("model", "class"), ("data", "from"), ("data", "prepare"))


def _installed() -> list[Path]:
    return [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]


def without_record(settings: Mapping[str, Any]) -> Settings:
    """The settings that a run goes on with, without what it says of itself."""
    kept = {key: value for key, value in settings.items() if key not in RECORD}
    if isinstance(models := kept.get("models"), Mapping):
        kept["models"] = {m: {k: v for k, v in table.items() if k not in RECORD} for m, table in models.items()}
    return kept


def _model(problem: Problem, model_from: str) -> Settings:
    module = problem.model
    kind = type(module)
    return {
        **({"from": model_from} if model_from else {}),
        "class": f"{kind.__module__}:{kind.__qualname__}",
        **({"config": config} if (config := config_of(module)) else {}),
        "dtype": str(problem.dtype).removeprefix("torch."),
        **({"autocast": "bf16"} if problem.autocast else {}),
        "trained": problem.dim,
        **({"frozen": frozen} if (frozen := [n for n, p in module.named_parameters() if not p.requires_grad]) else {}),
        "shapes": {name: list(value.shape) for name, value in module.state_dict().items()},
    }


def config_of(module: nn.Module) -> str:
    """What a module was made from, as JSON, where it keeps that: a Hugging Face config, or a dict of all arguments."""
    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_dict") and isinstance(getattr(type(module), "config_class", None), type):
        config = config.to_dict()
    elif not isinstance(config, dict) or set(config) != set(constructor(type(module))):
        return ""
    try:
        return json.dumps(config, sort_keys=True)
    except (TypeError, ValueError):  # something that is no plain value
        return ""


def constructor(kind: type[Any]) -> list[str]:
    """The names of a class's arguments."""
    return list(inspect.signature(kind).parameters)


def _objective(objective: Objective) -> Settings:
    """Plain values as they are, functions by their names."""
    told: Settings = {"loss": _plain(objective.loss)}
    if objective.output is not None:
        told["output"] = _plain(objective.output)
    if objective.classes is not None:
        told["classes"] = objective.classes
    if (objective.per, tuple(objective.takes)) != ("example", ("output", "target")):
        told |= {"per": objective.per, "takes": list(objective.takes)}
    if objective.metrics is not None:
        told["metrics"] = sorted(objective.metrics)
    return told


def _plain(value: Any) -> Any:
    """A value of TOML."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return _named(value) if callable(value) else value


def _named(function: Any) -> str:
    """A function as 'module:name' where it can be imported; else what it is called, between angle brackets."""
    called = getattr(function, "__qualname__", type(function).__name__)
    return import_path(function) or f"<{called.replace('<', '').replace('>', '')}>"


def _data(federation: Federation, data_from: str) -> Settings:
    raw = first_row(federation)
    prepare = federation.prepare
    splits = {s: int(r.length.sum()) for s in SPLITS if (r := getattr(federation, s)) is not None}
    sizes = federation.examples
    names = plain_names(federation.names)
    return {
        **({"from": data_from} if data_from else {}),
        "clients": len(federation),
        "rows": federation.size,
        **splits,
        **({} if federation.server is None else {"server": len(federation.server)}),
        "smallest_client": int(sizes.min()),
        "largest_client": int(sizes.max()),
        **({"names": names} if 0 < len(names) <= MOST_NAMES else {}),
        **({"classes": {n: list(c) for n, c in federation.classes.items()}} if federation.classes else {}),
        **_inputs("inputs", raw, federation.features),
        **({} if prepare is None else {"prepare": _named(prepare), **_inputs("prepared", prepare(raw), {})}),
    }


def _inputs(key: str, x: Nested, features: Mapping[str, tuple[str, ...]]) -> Settings:
    """The arrays of an example; nothing where they are in a structure of somebody's own."""
    plain = all(isinstance(t, Tensor) for t in by_path(x).values())
    return {key: Inputs.of(x, features).table()} if plain else {}


def first_row(federation: Federation) -> Nested:
    """One example, as it is stored."""
    client = int(np.flatnonzero(federation.examples)[0])
    row = federation.rows("train", client)[:1]
    index = torch.from_numpy(row)
    return federation.read(row) if federation.streamed else mapped(lambda t: t[index.to(t.device)], federation.x)
