"""Something else by one word: of the file's settings, what the newly named thing has no use for is left out.

`--set algorithm.name=fsmgda` on a file that was written for FedCMOO leaves out `compress`, and says so. What the
command line itself sets is never left out: where the new thing does not have it, that is refused as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from polyfed.core.errors import BadInput, shown
from polyfed.core.settings import Settings, knows, takes
from polyfed.experiment.schema import NAMES

Path = tuple[str, ...]
NESTED = ("weighting", "compress", "regulariser", "server_optimizer")  # tables of [algorithm] that name something
WORDS = ("name", "rule", "partition")  # keys that are names


class Place(NamedTuple):
    """A table that names something: what it names by, and where the settings of that stand."""

    kind: str
    named_at: Path
    table_at: Path


class Maker(NamedTuple):
    """What a table's settings go to, and those of its arguments that the system provides."""

    do: Callable[..., Any]
    given: Path = ()


class Named(NamedTuple):
    """What a table names: as one word, and what the settings go to; a key may be any maker's."""

    word: str
    makers: tuple[Maker, ...]


def is_named(path: Path) -> bool:
    """Whether a table of this path names something, so that a text in its place is its name."""
    own = path[2:] if path[:1] == ("models",) else path
    return own in {("algorithm",), ("data",), ("model",), ("engine",)} or own in {("algorithm", n) for n in NESTED}


def refit(before: Settings, after: Settings, given: Collection[Path]) -> list[str]:
    """Take out of the settings what the things that they newly name do not have; a sentence for each.

    Args:
        before: the file's settings.
        after: those that the command line has made of them; they are changed.
        given: the keys that the command line sets.
    """
    said = []
    for place in _places(after):
        table = _at(after, place.table_at)
        names = [_words(settings, place) for settings in (before, after)]
        if isinstance(table, dict) and names[0] != names[1] and (new := _found(place.kind, names)):
            said += _refit(table, place.table_at, new, given)
            if place.table_at == ("data",) and names[0][0] != names[1][0] and ("data", "partition") not in given:
                said += _without_partition(table, after.get("seed", 0), given)
            said += _others(after, place, given)
    return said


def _others(settings: Settings, place: Place, given: Collection[Path]) -> Iterator[str]:
    """Models that name their own: what the experiment now names for all is not theirs."""
    models = settings.get("models") if (*place.table_at, "name") in given and len(place.table_at) == 1 else None
    for model in models if isinstance(models, dict) else ():
        own = _at(settings, ("models", model, place.kind, "name"))
        if own not in (None, _at(settings, (place.kind, "name"))):
            yield f"Model {shown(model)} keeps its own {place.kind}, {own}."


def _refit(table: Settings, path: Path, new: Named, given: Collection[Path]) -> list[str]:
    unknown: list[str] = []
    other: list[str] = []
    for key, value in list(table.items()):
        own = [maker for maker in new.makers if knows(maker.do, key, maker.given)]
        if key in WORDS or (own and all(takes(maker.do, key, value, maker.given) for maker in own)):
            continue
        rest = _only_given(value, (*path, key), given)
        if rest == value:
            continue
        table.pop(key)
        if rest is not None:
            table[key] = rest
        gone = [key] if rest is None else [f"{key}.{inner}" for inner in value if inner not in rest]
        (other if own else unknown).extend(".".join((*path, one)) for one in gone)
    lists = {f"does not have {'them' if len(unknown) > 1 else 'it'}": unknown, "takes other values": other}
    reasons = [f"because {new.word} {why}: {', '.join(keys)}" for why, keys in lists.items() if keys]
    return [f"Left out, {', and '.join(reasons)}."] if reasons else []


def _without_partition(table: Settings, seed: Any, given: Collection[Path]) -> list[str]:
    """Take out the file's partition where the new data set has nothing to part it by, as only loading it can tell."""
    from polyfed.data.build import can_part

    if table.get("partition") in (None, "iid") or can_part(table, seed):
        return []
    name, partition = table["name"], table.pop("partition")
    rest = _refit(table, ("data",), Named("iid", _makers("data", name, "iid")), given)
    return [f"Left out, because {name} cannot be parted by {partition}: data.partition.", *rest]


def _only_given(value: Any, path: Path, given: Collection[Path]) -> Any:
    """The part of a value that the command line sets; None if there is none."""
    if any(path[: len(one)] == one for one in given):
        return value
    if isinstance(value, dict) and any(one[: len(path)] == path for one in given):
        found = {key: _only_given(v, (*path, key), given) for key, v in value.items()}
        return {key: v for key, v in found.items() if v is not None}
    return None


# where things are named


def _places(settings: Settings) -> Iterator[Place]:
    """Tables that name something, outer ones first."""
    models = settings.get("models")
    owners: list[Path] = [(), *(("models", name) for name in (models if isinstance(models, dict) else ()))]
    for owner in owners:
        for kind in ("data", "model", "algorithm") if owner else ("data", "model", "algorithm", "engine"):
            yield Place(kind, (*owner, kind), (*owner, kind))
        method = (*owner, "algorithm")
        for kind in NESTED:
            yield Place(kind, (*method, kind), (*method, kind))
        yield Place("weighting", (*method, "weighting"), (*method, "weighting_options"))
        table = _at(settings, method)
        for key in table if isinstance(table, dict) else ():
            yield Place("rule", (*method, key), (*method, key))


def _at(settings: Settings, path: Path) -> Any:
    node: Any = settings
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _words(settings: Settings, place: Place) -> Path:
    """The names in a table, or in that which it inherits from."""
    table = _at(settings, place.named_at)
    keys = ("rule",) if place.kind == "rule" else ("name", "partition") if place.kind == "data" else ("name",)
    own = {"name": table} if isinstance(table, str) else table if isinstance(table, dict) else {}
    found = {key: own.get(key) for key in keys}
    if found.get("name", "") is None and place.named_at[:1] == ("models",) and len(place.named_at) == 3:
        general = _words(settings, Place(place.kind, (place.kind,), (place.kind,)))
        found = {key: value or word for (key, value), word in zip(found.items(), general, strict=True)}
    default = {"name": NAMES.get(place.kind), "partition": "iid"}
    return tuple(str(value or default.get(key, "")) for key, value in found.items())


def _found(kind: str, names: list[Path]) -> Named | None:
    """What is newly named; none where there is no such thing, which building says in its own words."""
    word = next(new for old, new in zip(*names, strict=True) if old != new)
    try:
        return Named(word, _makers(kind, *names[1]))
    except (BadInput, KeyError):
        return None


def _makers(kind: str, name: str, partition: str = "") -> tuple[Maker, ...]:
    from polyfed.algorithms.tasks.regularisers import KINDS
    from polyfed.data.build import Data
    from polyfed.experiment.catalogue import GIVEN, registries
    from polyfed.experiment.schema import Model

    def of(kinds: str, name: str) -> Maker:
        return Maker(registries()[kinds][name], GIVEN.get(kinds, ()))

    if kind == "regulariser":
        return (Maker(KINDS[name]),)
    if kind == "data":
        return Maker(Data), of("datasets", name), of("partitions", partition)
    if kind == "model":
        return Maker(Model), of("models", name)
    return (of("compressors" if kind == "compress" else f"{kind}s", name),)
