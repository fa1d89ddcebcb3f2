"""An app's experiment, the same on the server and on every client: the file in the app, and the run's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfed.core.errors import BadInput

ENGINE = ("timeout", "min-replies", "wait")  # keys of the app's configuration that are the engine's


def experiment(folder: Path, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The experiment's name and settings, as `flwr run -c` has changed them."""
    from polyfed.experiment.reading import override, read

    name, settings = read(str(_inside(folder, str(config.get("experiment", "experiment.toml")))))
    more = [part.strip() for part in str(config.get("set", "")).split(";") if part.strip()]
    settings = override(settings, more)
    if rounds := int(config.get("rounds", 0)):
        settings["rounds"] = rounds
    engine = {key.replace("-", "_"): config[key] for key in ENGINE if key in config}
    return name, {**settings, "engine": {"name": "flower", "address": "superlink", **engine}}


def _inside(folder: Path, name: str) -> Path:
    """A file of the app, and no other: its name may come from another machine."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise BadInput(f"The app has no experiment {name!r}.")
    return path
