"""What a search may change: settings and the values that they may have, as KEY=RANGE texts.

    algorithm.lr=log:0.01..1                a number, drawn by its logarithm
    algorithm.server_lr=0.5..2              a number
    algorithm.local_steps=int:1..20         a whole number
    algorithm.name=fedcmoo,fsmgda           one of some; a list is one, too: model.hidden=[64],[128, 64]

What trials are compared on (data, evaluate, objectives, rounds) is no parameter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfed.core.errors import BadInput, nearest, shown
from polyfed.core.registry import Registry
from polyfed.core.settings import Settings, accepts, knows
from polyfed.experiment.reading import as_value
from polyfed.experiment.schema import NAMES, Model, Top
from polyfed.study.grid import as_text, split

DIGITS = 4  # significant ones of a number that is drawn: as a person would write it
HOW = "write log:0.01..1, 0.5..2, int:1..20, or choices as in fedcmoo,fsmgda"
JUDGES = ("data", "evaluate", "objectives")  # what trials are compared on
NEVER = {
    "seed": "is no matter of better and worse: --seed sets it",
    "rounds": "is set by --rounds: trials are compared after the same number",
    "engine": "changes no model: --set sets it",
    **dict.fromkeys(JUDGES, "is what trials are compared on: set it by --set, for all of them"),
}


@dataclass(frozen=True)
class Parameter:
    """A setting that a search may change.

    Args:
        key: its whole name, 'algorithm.lr'.
        low, high: the ends of a range.
        whole: whether a range is of whole numbers.
        log: whether it is drawn by logarithms.
        choices: in place of a range, values as JSON has them.
    """

    key: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def short(self) -> str:
        """What a column of a table is called: the method's own settings by their last word."""
        return self.key.removeprefix("algorithm.") if self.key != "algorithm.name" else "algorithm"

    @property
    def names(self) -> bool:
        """Whether it names a method, a model, ..., which others may or may not have a key for."""
        return self.key.rpartition(".")[2] == "name"

    def __str__(self) -> str:
        if self.choices:
            return ",".join(as_text(value) for value in self.choices)
        kind = "int:" if self.whole else "log:" if self.log else ""
        return f"{kind}{self.low:.15g}..{self.high:.15g}"

    def holds(self, value: Any) -> bool:
        """Whether a value is one of those that may be drawn."""
        if self.choices:
            return value in self.choices
        number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def rounded(self, value: Any) -> Any:
        """A value that was drawn, as a person would write it; within the range all the same."""
        if self.choices or self.whole:
            return value
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


def read_parameters(given: Iterable[str] | Mapping[str, Any]) -> tuple[Parameter, ...]:
    """From KEY=RANGE texts, or from a dict in which a list is a choice of values.

    Args:
        given: the texts, or the dict.
    """
    texts = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    if not texts or (not isinstance(given, Mapping) and not all(isinstance(one, str) for one in given)):
        raise BadInput(f"Parameters should be a dict of keys and ranges. Found {shown(given)}; {HOW}.")
    pairs = given.items() if isinstance(given, Mapping) else map(_pair, given)
    found = tuple(_parameter(key, space) for key, space in pairs)
    if not found:
        raise BadInput(f"A search needs a parameter: --param KEY=RANGE, as in --param algorithm.lr=log:0.01..1; {HOW}.")
    keys = [one.key for one in found]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise BadInput(f"--param {twice} is given twice; give one range, or all choices at once.")
    return found


def _pair(text: str) -> tuple[str, str]:
    key, equals, space = text.partition("=")
    if not equals or not key.strip() or not space.strip():
        raise BadInput(f"--param needs KEY=RANGE: {HOW}. Found {shown(text)}.")
    return key.strip(), space.strip()


def _parameter(key: Any, space: Any) -> Parameter:
    if not isinstance(key, str):
        raise BadInput(f"A parameter's key should be a text, as in 'algorithm.lr'. Found {shown(key)}.")
    if why := NEVER.get(key.split(".")[0]):
        raise BadInput(f"--param {key}: {key.split('.')[0]} {why}.")
    if isinstance(space, list | tuple):
        return _choice(key, [json.loads(json.dumps(value)) for value in space])
    if not isinstance(space, str):
        raise BadInput(f"--param {key} needs a range or choices: {HOW}. Found {shown(space)}.")
    kind, _, ends = space.rpartition(":")
    if ".." in ends and kind in ("", "log", "int"):
        return _range(key, kind, ends, space)
    return _choice(key, [as_value(word) for word in split(space)])


def _range(key: str, kind: str, ends: str, space: str) -> Parameter:
    low, high = (_number(text, key, space, whole=kind == "int") for text in ends.split("..", 1))
    if low >= high:
        raise BadInput(f"--param {key}={space} is empty: a range goes from a number to a larger one.")
    if kind == "log" and low <= 0:
        raise BadInput(f"--param {key}={space}: a range by logarithms begins above 0. Found {low:g}.")
    return Parameter(key, low, high, whole=kind == "int", log=kind == "log")


def _number(text: str, key: str, space: str, whole: bool) -> float:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        what = "whole numbers" if whole else "numbers"
        raise BadInput(f"--param {key}={space}: the ends of a range are {what}. Found {shown(text.strip())}.")
    return number


def _choice(key: str, values: list[Any]) -> Parameter:
    unique = [value for i, value in enumerate(values) if value not in values[:i]]
    if len(unique) < 2:
        found = shown(values[0]) if values else "none"
        raise BadInput(f"--param {key} leaves nothing to choose. Found {found}: {HOW}; --set fixes a value.")
    return Parameter(key, choices=tuple(unique))


# who has a setting


def check_keys(parameters: Sequence[Parameter], settings: Settings) -> None:
    """Refuse a key that the experiment does not have, whatever else is chosen.

    Args:
        parameters: the search's.
        settings: the experiment's.
    """
    named = _namings(parameters, settings)
    for parameter in parameters:
        if not any(applies(parameter.key, one) for one in named):
            words = parameter.key.split(".")
            known = {key for one in named for key in _known(words, one)}
            raise BadInput(f"--param {parameter.key}: there is no such setting.{nearest(words[-1], known)}")


def _namings(parameters: Sequence[Parameter], settings: Settings) -> list[Settings]:
    """The settings with all that may be named in them."""
    found = [settings]
    for parameter in parameters:
        if parameter.names:
            path = parameter.key.split(".")
            found = [_with(one, path, name) for one in found for name in parameter.choices]
    return found


def _with(settings: Settings, path: Sequence[str], value: Any) -> Settings:
    inner = settings.get(path[0])
    if len(path) == 1:
        return {**settings, path[0]: value}
    table = {"name": inner} if isinstance(inner, str) else inner if isinstance(inner, dict) else {}
    return {**settings, path[0]: _with(table, path[1:], value)}


def applies(key: str, settings: Settings) -> bool:
    """Whether an experiment has a setting of this name: the method, the model that it names.

    Args:
        key: the setting's whole name.
        settings: the experiment's.
    """
    words = key.split(".")
    return words[0] not in ("algorithm", "model", "models") or len(words) == 1 or words[-1] in _known(words, settings)


def _known(words: Sequence[str], settings: Settings) -> set[str]:
    """The keys beside that which some words name; its own, where a table of any keys is meant."""
    models = settings.get("models")
    if words[0] == "models":
        own = models.get(words[1]) if isinstance(models, dict) and len(words) > 1 else None
        if not isinstance(own, dict) or len(words) < 4:
            return set(models) if isinstance(models, dict) else set()
        inherited = {kind: {**_table(settings.get(kind)), **_table(own.get(kind))} for kind in ("algorithm", "model")}
        return _known(words[2:], inherited)
    if words[0] not in ("algorithm", "model") or len(words) == 1:
        return set(Top.model_fields)
    name = _table(settings.get(words[0])).get("name", NAMES[words[0]])
    maker = _maker(words[0], name)
    if maker is None:
        return set()
    more = {"name"} if words[0] == "algorithm" else set(Model.model_fields)
    known = accepts(maker, ("dataset",)) | more
    if len(words) > 2:  # a table inside, of which only its own maker knows the keys
        return {words[-1]} if knows(maker, words[1]) else known
    return known | ({words[1]} if knows(maker, words[1], ("dataset",)) else set())


def _maker(kind: str, name: Any) -> Any:
    """What a table names; None where there is no such thing, which building says in its own words."""
    from polyfed.algorithms import algorithms
    from polyfed.models import models

    registry: Registry[Any] = algorithms if kind == "algorithm" else models
    try:
        return registry[name] if isinstance(name, str) else None
    except BadInput:
        return None


def _table(value: Any) -> Settings:
    return {"name": value} if isinstance(value, str) else value if isinstance(value, dict) else {}
