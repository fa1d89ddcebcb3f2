"""Layers: what stands between an algorithm and its clients and is neither.

A layer is a small dataclass of settings, listed under [[layers]] by name. It may have a client's half (a stand-in for
the client, a change of the reply), a server's half (a Fleet around a Fleet), a map from the work's schema to the
transported one, exchanges of its own, and state at the clients or at the server.

Order: the first listed is nearest the work at the client and nearest the algorithm at the server. Stages come in one
order, with the finite check after the attacks and the weighing of replies before they are quantised:

    attack < (finite check) < guard (clip, noise) < aggregate < (weigh) < quantise < mask < transport
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from polyfed.core import keys, tensorkeys
from polyfed.core.client import Client, ClientState
from polyfed.core.errors import BadInput
from polyfed.core.messages import Request
from polyfed.core.registry import Registry
from polyfed.core.schema import Fields
from polyfed.core.work import Work

if TYPE_CHECKING:
    from polyfed.core.fleet import PartFleet
    from polyfed.core.part import Parts

Stage = Literal["attack", "guard", "aggregate", "quantise", "mask", "transport"]
STAGES: tuple[Stage, ...] = ("attack", "guard", "aggregate", "quantise", "mask", "transport")

layers: Registry[Callable[..., Any]] = Registry("layer", "polyfed.layers")


@dataclass
class Outgoing:
    """A reply on its way out of a client, as a layer's client half sees it.

    Args:
        client: whose it is; under a batched engine a stand-in for many clients, whose key and id are tensors.
        request: what it answers.
        fields: what each array means, by name.
        arrays: the arrays; weights among them may be plain numbers.
        state: what the client remembers, for a layer that says `remembers`; put another mapping here to change it.
            All works and layers of a client share it: begin a name with the layer's own.
        place: the layer's, among those that act on this work.
    """

    client: Client
    request: Request
    fields: Fields
    arrays: Mapping[str, Any]
    state: ClientState
    place: int = 0

    @property
    def key(self) -> Any:
        """For what this layer draws: another one for every client, round, exchange and layer."""
        parts = self.client.key, "layer", self.place, self.client.exchange
        return keys.key(*parts) if isinstance(self.client.key, int) else tensorkeys.key(*parts)

    def named(self, *roles: str) -> list[str]:
        """The names of the arrays that have one of these roles."""
        return [name for name in self.arrays if self.fields[name].role in roles]


class Layer:
    """Base class: override what the layer has. Works that only measure are left alone unless `measures` is true.

    A client's half may be run for many clients at once (vmap): it selects with `torch.where`, draws from the client's
    key only, and never raises or branches on data.
    """

    stage: ClassVar[Stage] = "guard"
    needs: ClassVar[Literal["", "sums"]] = ""  # 'sums': refuses a method that needs single replies
    measures: ClassVar[bool] = False
    remembers: ClassVar[bool] = False  # whether it keeps state at the clients

    @property
    def singly(self) -> Collection[int]:
        """Clients that have to be run one at a time."""
        return ()

    def client(self, client: Any) -> Any:
        """The client as the work sees it: itself, or a stand-in."""
        return client

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        """The arrays that leave the client."""
        return out.arrays

    def transported(self, fields: Fields) -> Fields:
        """The schema of the reply after this layer."""
        return fields

    def fleet(self, inner: PartFleet) -> PartFleet:
        """The server's half."""
        return inner

    def check(self, parts: Parts, clients: int) -> None:
        """Refuse what does not go with these models, or with so many clients, before round 1."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.stage not in STAGES:
            raise TypeError(f"{cls.__name__}.stage should be one of {', '.join(STAGES)}. Found {cls.stage!r}.")
        from polyfed.core.hooks import check_hooks

        check_hooks(cls, Layer)


@dataclass(frozen=True)
class Layers:
    """The layers of a run, in the order of the list."""

    listed: tuple[Layer, ...] = ()
    finite: bool = field(default=True)  # the server's own measurements may be infinite: that is worth knowing
    guard: bool = True  # whether the server leaves out replies that are far longer than the cohort's (`core/guard.py`)
    failures: Path | None = None  # where clients on this machine leave the tracebacks of their errors

    def __post_init__(self) -> None:
        for layer in self.listed:
            if not isinstance(layer, Layer):
                raise BadInput(f"Layers should be polyfed layers. Found {type(layer).__name__}.")
        quantising = [layer for layer in self.listed if layer.stage == "quantise"]
        if len(quantising) > 1:
            twice = " and ".join(repr(layer_name(layer)) for layer in quantising)
            raise BadInput(f"Replies are quantised once. Found the layers {twice}; leave one of them out.")
        places = [STAGES.index(layer.stage) for layer in self.listed]
        for before, after, layer, other in zip(places, places[1:], self.listed, self.listed[1:], strict=False):
            if before > after:
                raise BadInput(
                    f"Layers go in the order {' < '.join(STAGES)}: list {layer_name(other)!r} ({other.stage}) before "
                    f"{layer_name(layer)!r} ({layer.stage})."
                )

    def on(self, work: Work) -> tuple[Layer, ...]:
        """Those that act on this work."""
        return self.listed if not work.measures else tuple(layer for layer in self.listed if layer.measures)

    def transported(self, work: Work, options: Mapping[str, Any], upto: Layer | None = None) -> Fields:
        """The schema of a reply as it travels, or as it is after one of the layers."""
        fields = work.fields(options)
        for layer in self.on(work):
            fields = layer.transported(fields)
            if layer is upto:
                break
        return fields

    def fleet(self, inner: PartFleet) -> PartFleet:
        """The server's halves around a fleet, the first listed outermost."""
        from polyfed.core.door import PastMeasuring

        for layer in reversed(self.listed):
            half = layer.fleet(inner)
            inner = half if half is inner or layer.measures else PastMeasuring(half, inner)
        return inner

    def remember(self, work: Work) -> bool:
        """Whether clients keep state with this work on behalf of a layer."""
        return any(layer.remembers for layer in self.on(work))

    def hide(self, work: Work) -> bool:
        """Whether single replies to this work would pass by a layer that changes sums."""
        return any(layer.needs == "sums" for layer in self.on(work))

    def singly(self, work: Work) -> frozenset[int]:
        """The clients whose work has to be done one at a time."""
        return frozenset(client for layer in self.on(work) for client in layer.singly)

    def check(self, parts: Parts, clients: int) -> None:
        """Refuse, by name, what does not go with the methods or the number of clients."""
        for layer in self.listed:
            layer.check(parts, clients)
            for part in parts.values():
                if layer.needs == "sums" and part.algorithm is not None and part.algorithm.needs == "replies":
                    raise BadInput(
                        f"The layer {layer_name(layer)!r} works on sums of replies, and the method "
                        f"{part.algorithm.title!r} needs every single reply; leave one of them out."
                    )


def layer_name(layer: Layer) -> str:
    """What a layer is called in experiments."""
    return layers.name_of(type(layer))
