"""Adapters of peft: saved as peft saves them, so that `PeftModel.from_pretrained` takes a run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyfed.core.problem import is_peft
from polyfed.run.plan import Plan


def save_adapters(plan: Plan, model: Any, folder: Path) -> None:
    """Write an adapter's directory for each trained model that is peft's.

    Args:
        plan: whose models.
        model: the trained module; of several models, the `nn.ModuleDict` of them.
        folder: the run's directory; adapters go into 'adapter', of several models into 'adapter/NAME'.
    """
    for name, part in plan.parts.items():
        if is_peft(part.problem.model):
            own = model[name] if name else model
            # without a look into a hub for whether the vocabulary has changed: modules_to_save says what was trained
            own.save_pretrained(folder / "adapter" / name, save_embedding_layers=False)
