"""Who takes part in a run: gathered once for all of its models, then kept beside it, so that everybody keeps a number.

A client that says who it is for some models only has no rows for the others: it is left out of those, and told of. One
client can neither keep a run from starting nor, by coming late, cost more than the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from polyfed.core.errors import RunStopped, shown
from polyfed.deploy.identity import Names
from polyfed.deploy.nodes import Nodes, pause
from polyfed.deploy.roster import Description, Roster

Models = Mapping[str, Nodes]  # by the model's name, its nodes


def gathered(
    models: Models, clients: int, wait: float, names: Names, kept: Sequence[Path] | None = None
) -> dict[str, Roster]:
    """A roster for each model, of the same clients in the same order.

    Args:
        models: each model's nodes.
        clients: how many there should be.
        wait: seconds that they have to appear in.
        names: who may have which name.
        kept: a file for each model, in which its roster is kept; None to keep nothing.
    """
    if kept is not None and all(path.is_file() for path in kept):
        rosters = {m: Roster.load(path) for m, path in zip(models, kept, strict=True)}
        _found_again(models, rosters, wait, names)
        names.close(_everybody(rosters))
        return rosters
    rosters = _found(models, clients, wait)
    names.close(_everybody(rosters))  # first: were this lost, another key could have a name that somebody trains under
    for m, path in zip(models, kept or (), strict=kept is not None):
        rosters[m].save(path)
    return rosters


def _everybody(rosters: Mapping[str, Roster]) -> set[str]:
    return {client.name for roster in rosters.values() for client in roster.clients}


def _waited(models: Models, wait: float, there: Callable[[], bool]) -> bool:
    """Let nodes say who they are, until all are there or the time is up."""
    begun = time.monotonic()
    while not there():
        if time.monotonic() > begun + wait:
            return False
        for nodes in models.values():
            nodes.look()
            nodes.pull(())
        pause(begun)
    return True


def _found(models: Models, clients: int, wait: float) -> dict[str, Roster]:
    """The first clients that have said who they are for every model; after the wait, for some."""
    if not _waited(models, wait, lambda: len(_complete(models)) >= clients):
        some = {name for nodes in models.values() for name in nodes.found}
        least = min((len(nodes.found) for nodes in models.values()), default=0)
        if len(some) < clients or not least:
            raise RunStopped(_too_few(models, len(some) if least else 0, clients, wait))
    anybody = dict.fromkeys(name for nodes in models.values() for name in nodes.found)
    chosen = list(dict.fromkeys([*_complete(models), *anybody]))[:clients]
    return {m: Roster.gathered({n: _said(n, m, nodes, models) for n in chosen}) for m, nodes in models.items()}


def _complete(models: Models) -> list[str]:
    """Who has said who it is for every model."""
    first, *others = models.values()
    return [name for name in first.found if all(name in nodes.found for nodes in others)]


def _said(name: str, model: str, nodes: Nodes, models: Models) -> Description:
    """What a client says it has for a model: nothing, where it has not said so, and then it is never asked."""
    if name in nodes.found:
        return nodes.found[name]
    node = next(other.at[name] for other in models.values() if name in other.at)
    why = nodes.refused.get(node, "it has not said what it has for it")
    nodes.tell(node, f"client {shown(name)} is left out of the model {shown(model)}: {why}")
    return Description(name, 0, [False] * nodes.objectives)


def _found_again(models: Models, rosters: Mapping[str, Roster], wait: float, names: Names) -> None:
    """The clients of a run that goes on: with those who are there, if somebody is."""
    names.taken = _everybody(rosters)
    asked = {
        m: {client.name for client in roster.clients if client.examples or any(client.aside or ())}
        for m, roster in rosters.items()
    }
    if not _waited(models, wait, lambda: all(nodes.found.keys() >= asked[m] for m, nodes in models.items())):
        for m, nodes in models.items():
            if asked[m] and not nodes.found:
                raise RunStopped(_too_few(models, 0, len(asked[m]), wait))


def _too_few(models: Models, there: int, clients: int, wait: float) -> str:
    refused = [text for nodes in models.values() for text in nodes.refused.values()]
    why = "".join(f" A node was refused: {text}." for text in refused[:1])
    return f"{there} of {clients} clients were there after {wait:g} s; start the others.{why}"
