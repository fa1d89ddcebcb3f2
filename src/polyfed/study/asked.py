"""An experiment as a study is asked of it: a file, a built-in name, or its keys as a dict."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from polyfed.core.code import rule_restored, trusted
from polyfed.core.errors import BadInput, shown
from polyfed.core.settings import Settings
from polyfed.experiment.reading import experiment_name, folder, read


def read_experiment(experiment: Any, allow_code: Sequence[str], stack: ExitStack) -> tuple[str, Settings, str]:
    """An experiment's name and keys, and the folder of its own functions; a dict's names are its author's.

    Args:
        experiment: the file, the name or the dict.
        allow_code: packages whose code the file may name.
        stack: until it is closed, what the experiment names may be imported.
    """
    if isinstance(experiment, Mapping):
        stack.enter_context(trusted())
        keys = copy.deepcopy(dict(experiment))
        return experiment_name(keys.pop("name", "python")), keys, ""
    if not isinstance(experiment, str | Path):
        raise BadInput(f"experiment should be a file, a built-in name or a dict. Found {shown(experiment)}.")
    stack.enter_context(rule_restored())
    name, keys = read(str(experiment), allow_code)
    return name, keys, folder(str(experiment))
