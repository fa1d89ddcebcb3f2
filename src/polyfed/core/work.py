"""What clients do: one function per kind of request, the same on every engine.

A work function gets a client and the request and returns named arrays:

    @work("norm", reply={"norm": ""})
    def norm(client: GradientClient, request: Request) -> Arrays: ...

`reply` is the schema of the answer (`polyfed.core.schema`), checked at the server. Work with options declares them as a
dataclass and gets one; a misspelt option is an error at the server, before anything is sent:

    @dataclass(frozen=True)
    class Steps:
        lr: float
        steps: int = 1

    @work("train", reply={"delta": update("d")}, options=Steps)
    def train(client: GradientClient, request: Request, options: Steps) -> Arrays: ...

Work that remembers something between rounds names how to begin, and takes and returns its state, last:

    @work("count", reply={"n": ""}, state=lambda client: {"n": torch.zeros(())})
    def count(client: RowClient, request: Request, state: ClientState) -> tuple[Arrays, ClientState]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, with_config
from torch import Tensor

from polyfed.core.client import Client, ClientState
from polyfed.core.errors import BadInput
from polyfed.core.messages import Options, Request
from polyfed.core.registry import Registry
from polyfed.core.schema import Field, Fields
from polyfed.core.settings import check

Arrays = Mapping[str, Tensor | float]
ReplySchema = Mapping[str, Field | str]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class NoOptions:
    """The options of work that has none."""


@dataclass(frozen=True)
class Work:
    """A client's side of a request.

    Args:
        name: what requests call it.
        do: the function.
        reply: the schema of its answer, or a function from its options to that schema.
        options: the dataclass of its options.
        needs: 'gradients' (grad, jacobian, measure, loop), which an engine may give many clients at once; or 'rows'
            (data, scratch), one client at a time.
        state: from a client to what it remembers at first; None for work that remembers nothing.
        measures: whether it only measures: simulated faults, time and attacks leave it alone.
        numbers: options, floats that a method may change every round, which may come as tensors, too.
        cost: from the options, a client's number of examples and of objectives held to the rows that gradients are
            taken on, each objective's counted: what simulated time charges. None for work without gradients.
        counts: from the options and a client's number of examples to the most that the client may count in a mean, for
            the server to check; its number of examples if not given. Work with an option `split` is about that split's
            rows: its counts gets their number.
        local_model: from a client, the request and its options to the model and the buffers that the client's local
            training ends with, for those who measure it; None for work without local training.
    """

    name: str
    do: Callable[..., Any]
    reply: ReplySchema | Callable[[Any], ReplySchema]
    options: type[Any] = NoOptions
    needs: Literal["gradients", "rows"] = "gradients"
    state: Callable[[Any], ClientState] | None = None
    measures: bool = False
    numbers: tuple[str, ...] = ()
    cost: Callable[[Any, int, int], float] | None = None
    counts: Callable[[Any, int], float] | None = None
    local_model: Callable[[Any, Request, Any], tuple[Tensor, Tensor]] | None = None
    _last: list[tuple[Options, Any, Fields] | None] = field(default_factory=lambda: [None], repr=False, compare=False)

    @property
    def help(self) -> str:
        return self.do.__doc__ or ""

    def __call__(
        self, client: Client, request: Request, state: ClientState | None
    ) -> tuple[Arrays, ClientState | None]:
        options = () if self.options is NoOptions else (self.parse(request.options),)
        if self.state is None:
            return self.do(client, request, *options), None
        before = {**self.state(client), **(state or {})}
        arrays, after = self.do(client, request, *options, before)
        return arrays, {**before, **after}

    def parse(self, options: Options) -> Any:
        """The options as the work sees them; numbers may be tensors, so that types are not looked at."""
        return self._read(options)[1]

    def fields(self, options: Options) -> Fields:
        """The schema of a reply to a request with these options."""
        return self._read(options)[2]

    def _read(self, options: Options) -> tuple[Options, Any, Fields]:
        """What was read last is kept: all clients of a request have the same options."""
        last = self._last[0]
        if last is None or last[0] is not options:
            parsed = self.options(**options)
            given = self.reply(parsed) if callable(self.reply) else self.reply
            self._last[0] = last = (options, parsed, {name: Field.of(field) for name, field in given.items()})
        return last

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.options)

    def check(self, options: Options) -> None:
        """Refuse options that the work does not have, or of another type."""
        table = dict(options)
        known = [field.name for field in fields(self.options)]
        if unknown := next((name for name in table if name not in known), None):
            what = f" It has {', '.join(known)}." if known else " It has none."
            raise BadInput(f"The work {self.name!r} has no option {unknown!r}.{what}")
        check(lambda: self._adapter.validate_python(table), table, f"options of the work {self.name!r}", known)

    def most(self, options: Options, examples: int) -> float:
        """The most that a client with so many examples may count."""
        n = max(int(examples), 1)
        return float(n if self.counts is None else self.counts(self.parse(options), n))

    def split(self, options: Options) -> str:
        """Which of a client's rows it is about: those that its option `split` names, else 'train'."""
        return str(getattr(self.parse(options), "split", "train"))

    def sizes(self, options: Options) -> dict[str, int]:
        """The options that are whole numbers: letters that a schema may be written in."""
        parsed = self.parse(options)
        return {f.name: v for f in fields(self.options) if isinstance(v := getattr(parsed, f.name), int)}


works: Registry[Work] = Registry("work", "polyfed.work", own=False)


def work(
    name: str,
    *,
    reply: ReplySchema | Callable[[Any], ReplySchema],
    options: type[Any] = NoOptions,
    needs: Literal["gradients", "rows"] = "gradients",
    state: Callable[[Any], ClientState] | None = None,
    measures: bool = False,
    numbers: tuple[str, ...] = (),
    cost: Callable[[Any, int, int], float] | None = None,
    counts: Callable[[Any, int], float] | None = None,
    local_model: Callable[[Any, Request, Any], tuple[Tensor, Tensor]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a work function under the name that requests call it by; the arguments are those of `Work`."""

    def add(do: Callable[..., Any]) -> Callable[..., Any]:
        schema = reply if callable(reply) else dict(reply)
        works(name)(Work(name, do, schema, options, needs, state, measures, numbers, cost, counts, local_model))
        return do

    return add
