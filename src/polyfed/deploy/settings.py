"""An app's experiment, the same on the server and on every client: the file in the app, and the run's own settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfed.core.errors import BadInput, shown

ENGINE = ("timeout", "min-replies", "wait")  # keys of the app's configuration that are the engine's


def experiment(
    folder: Path, config: Mapping[str, Any], node: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, Any]]:
    """The experiment's name and settings, as `flwr run -c` has changed them.

    Args:
        folder: the app's.
        config: the run's configuration, which a client has from the server.
        node: a client's own: which installed packages the experiment may name code of, its `allow-code`, is decided
            there, and `set` names no code but theirs. At the server the run's configuration decides.
    """
    from polyfed.core.code import allowed_packages
    from polyfed.experiment.reading import override, read

    own = config if node is None else node
    allowed = allowed_packages(word for word in str(own.get("allow-code", "")).split(",") if word.strip())
    where = "the app's configuration" if node is None else "the node's configuration"
    remedy = f'if you trust it, add allow-code="{{package}}" to {where}'
    name, settings = read(str(_inside(folder, str(config.get("experiment", "experiment.toml")))), allowed, remedy)
    more = [part.strip() for part in str(config.get("set", "")).split(";") if part.strip()]
    said_here = _code_names(settings)

    def vet(changed: Mapping[str, Any]) -> None:
        if node is not None:
            _refuse_code(_code_names(changed) - said_here, allowed, remedy)

    settings = override(settings, more, vet=vet)
    if rounds := int(config.get("rounds", 0)):
        settings["rounds"] = rounds
    engine = {key.replace("-", "_"): config[key] for key in ENGINE if key in config}
    return name, {**settings, "engine": {"name": "flower", "address": "superlink", **engine}}


def _refuse_code(new: Iterable[str], allowed: Sequence[str], remedy: str) -> None:
    """A server's `set` brings numbers and names, never code: a name with a colon is held to the node's own list."""
    for name in sorted(new):
        module = name.partition(":")[0]
        if not any(module == one or module.startswith(f"{one}.") for one in allowed):
            raise BadInput(
                f"The server's 'set' names code, {shown(name)}, which this node takes from nobody; "
                f"{remedy.format(package=module[:60])}."
            )


def _code_names(value: Any) -> set[str]:
    """Every text with a colon in some settings."""
    if isinstance(value, dict | list):
        return {name for one in (value.values() if isinstance(value, dict) else value) for name in _code_names(one)}
    return {value} if isinstance(value, str) and ":" in value else set()


def _inside(folder: Path, name: str) -> Path:
    """A file of the app, and no other: its name may come from another machine."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise BadInput(f"The app has no experiment {name!r}.")
    return path
