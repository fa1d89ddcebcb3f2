"""Several problems as one, as a run sees them: objectives and weights are named after their model."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation
from polyfed.core.problem import Problem


def qualified(model: str, objective: str) -> str:
    """An objective's name among those of several models, 'model/objective'."""
    return f"{model}/{objective}"


class Models(Problem):
    """All models' problems: an `nn.ModuleDict` of their modules, and objectives called 'model/objective'."""

    def __init__(self, problems: Mapping[str, Problem]) -> None:
        for name in problems:
            _check_name(name)
        self.problems = dict(problems)
        self.model = nn.ModuleDict(_apart({name: p.model for name, p in problems.items()}))
        self.objectives = tuple(
            replace(o, name=qualified(m, o.name)) for m, p in problems.items() for o in p.objectives
        )
        self.names = tuple(o.name for o in self.objectives)
        self.params = {f"{m}.{n}": value for m, p in problems.items() for n, value in p.params.items()}
        self.buffers = {f"{m}.{n}": value for m, p in problems.items() for n, value in p.buffers.items()}
        self.dtype = max((p.dtype for p in problems.values()), key=lambda dtype: dtype.itemsize)

    def weights(self, states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """All models' weights, each under its model's name: 'model.layer.weight'."""
        every = {m: p.state_dict(states[m]["x"], states[m]["buffers"]) for m, p in self.problems.items()}
        return {f"{m}.{n}": value for m, weights in every.items() for n, value in weights.items()}


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or hasattr(nn.ModuleDict(), name):
        raise BadInput(
            f"A model's name should be letters, digits, - and _, and no method of torch's ModuleDict. Found {name!r}."
        )


def _apart(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """One module given for two models becomes two, or the second's weights would be written over the first's."""
    seen: set[int] = set()
    found: dict[str, nn.Module] = {}
    for name, module in modules.items():
        found[name] = copy.deepcopy(module) if id(module) in seen else module
        seen.add(id(module))
    return found


def pool_size(federations: Mapping[str, Federation]) -> int:
    """How many clients there are: all models share one pool."""
    sizes = {name: len(federation) for name, federation in federations.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} for {name!r}" for name, size in sizes.items())
        raise BadInput(f"All models share one pool of clients, so each needs data of the same number. Found {found}.")
    return next(iter(sizes.values()))


def check_cohort(models: int, cohort: int, clients: int) -> None:
    """In every round there is at least one client for each model."""
    if models > cohort:
        who = f"the {clients} clients" if cohort == clients else f"the cohort of {cohort} clients"
        raise BadInput(f"Each model needs a client in every round. Found {models} models for {who}; train fewer.")
