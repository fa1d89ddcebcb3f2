"""From a request to what is expected of its replies. What is the same in every round is kept from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from polyfed.core.facts import Facts
from polyfed.core.fleet import Population
from polyfed.core.form import Form
from polyfed.core.layer import Layer, Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.schema import Fields, Schema, schema_of
from polyfed.core.validate import Expected
from polyfed.core.work import Work, works


@dataclass(frozen=True)
class _Kept:
    """A form, and all that it was made of: it serves as long as that is the same.

    Args:
        form: of the replies.
        work, facts, population, layers: what the form was made of; none of them is ever changed, but each may be
            another one the next time.
        options: the request's, in words: the same words say the same values of the same types.
        fields: what each array means, as it travels.
        simple: whether the fields follow from the work and its options, and no layer sends them in another form.
        counts: from a client's number of examples to the most that it may count, as far as it was asked for.
    """

    form: Form
    work: Work
    facts: Facts
    population: Population
    layers: Layers
    options: str
    fields: Fields
    simple: bool
    counts: dict[int, float]


class Expecting:
    """What an engine expects of replies: one form for each kind of exchange that it has had."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, bool, bool], _Kept] = {}

    def __call__(
        self, part: Part, population: Population, layers: Layers, request: Request, buffers: Tensor | None = None
    ) -> Expected:
        """What a server that knows these clients expects of their replies.

        Args:
            part: the model that the request is about.
            population: what is known of its clients.
            layers: the layers that stand between.
            request: what is asked.
            buffers: those that clients start from, where the request does not say.
        """
        kind = request.part, request.work, request.weighed, "omega" in request.shared
        found, options = self._kept.get(kind), repr(request.options)
        facts, work = Facts.of(part.problem), works[request.work]
        same = (
            found is not None and found.work is work and found.facts is facts
            and found.population is population and found.layers is layers
        )  # fmt: skip
        if found is None or not same or not found.simple or found.options != options:
            before = found if same else None
            found = self._kept[kind] = _made(work, part, facts, population, layers, request, options, before)
        most = partial(work.most, request.options)
        return Expected(found.form, request, most, found.counts, request.shared.get("buffers", buffers))


def _made(
    work: Work,
    part: Part,
    facts: Facts,
    population: Population,
    layers: Layers,
    request: Request,
    options: str,
    before: _Kept | None,
) -> _Kept:
    """A form for other options, or for fields that a layer makes anew: the one before where they make no difference."""
    fields, split = layers.transported(work, request.options), work.split(request.options)
    schema, sizes = sent(part, fields, request), population.sizes(request)
    counts = before.counts if before is not None and before.options == options else {}
    if before is not None and (before.fields, before.form.schema, before.form.split, before.form.sizes) == (
        fields, schema, split, sizes,
    ):  # fmt: skip
        form = before.form
    else:
        form = Form(
            schema, fields, facts, population, sizes, weighed=request.weighed, staked="omega" in request.shared,
            strict=layers.guard, measures=work.measures, split=split,
        )  # fmt: skip
    simple = all(type(layer).transported is Layer.transported for layer in layers.on(work))
    return _Kept(form, work, facts, population, layers, options, fields, simple, counts)


def sent(part: Part, fields: Fields, request: Request) -> Schema:
    """Shape and type of every array of a reply as it travels."""
    sizes = {**works[request.work].sizes(request.options), **part.problem.dims}
    return schema_of(fields, sizes, part.problem.dtype, weighed=request.weighed)
