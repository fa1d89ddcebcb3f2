"""What is known of replies is kept from round to round, and never a moment longer than it is true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed import Layer, Objective, Problem
from polyfed.core.engine import Engine, engines, expected_replies
from polyfed.core.fleet import Stack
from polyfed.core.layer import Layers, Stage
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.schema import Fields, Packed
from polyfed.core.validate import Expected
from polyfed.core.work import work, works
from small import small_federation, small_problem

CLIENTS = list(range(6))
HOW: dict[str, Any] = {"lr": 0.1, "steps": 1, "batch_size": 4}


def engine_of(problem: Problem | None = None, *layers: Layer) -> Engine:
    made: Engine = engines["local"]({"": Part(problem or small_problem(), small_federation())}, Layers(layers))
    return made


def sgd(weighed: bool = False, omega: Tensor | None = None, **options: Any) -> Request:
    shared = {**small_problem().initial(), "omega": torch.ones(2) if omega is None else omega}
    return Request("sgd", shared, options={**HOW, **options}, weighed=weighed, folded=torch.full((6,), -1))


def replies(engine: Engine, request: Request) -> Stack:
    """All clients' honest replies, in one stack."""
    one = list(engine.replies(CLIENTS, request))
    return Stack(CLIENTS, {name: torch.cat([stack[name] for stack in one]) for name in one[0].arrays})


def weights_said(n: float, expected: Expected) -> Mapping[int, str]:
    """Who is refused where everybody says that it counts n."""
    arrays = {name: torch.ones(6, *shape, dtype=dtype) for name, (shape, dtype) in expected.form.schema.items()}
    arrays |= {name: torch.full_like(arrays[name], n) for name in ("weight", "heard")}
    return expected.validated(Stack(CLIENTS, arrays))[0].failed


def test_a_form_serves_all_rounds_and_step_sizes() -> None:
    engine = engine_of()
    first = engine.expected(sgd())
    assert engine.expected(replace(sgd(), round=2)).form is first.form
    assert engine.expected(sgd(lr=0.05)).form is first.form
    assert engine.expected(sgd(weighed=True)).form is not first.form


def test_clients_that_have_come_or_have_other_rows_are_known_at_once() -> None:
    engine, request = engine_of(), sgd(weight="size")
    assert weights_said(20, engine.expected(request)) == {}
    more = replace(engine.population[""], examples=np.full(6, 30))
    engine.population[""] = more
    assert list(weights_said(20, engine.expected(request))) == CLIENTS
    assert weights_said(30, engine.expected(request)) == {}
    holds = more.holds.copy()
    holds[4] = False
    engine.population[""] = replace(more, holds=holds)
    assert list(weights_said(30, engine.expected(request))) == [4]


def test_other_options_count_at_once() -> None:
    engine = engine_of()
    for by, n in (("uniform", 1), ("size", 20), ("uniform", 1)):
        assert weights_said(n, engine.expected(sgd(weight=by))) == {}
        assert list(weights_said(21 - n, engine.expected(sgd(weight=by)))) == CLIENTS
    for width in (50, 60, 50):
        request = Request("sgd-each-sketch", options={**HOW, "k": width})
        assert engine.expected(request).form.schema["S"][0] == (2, width)


def test_a_guard_that_is_switched_is_off_or_on_at_once() -> None:
    engine, request = engine_of(), sgd()
    stack = replies(engine, request)
    below = Stack(CLIENTS, {**stack.arrays, "losses": -stack["losses"]})
    for guard in (True, False, True):
        engine.layers = Layers(guard=guard)
        assert bool(engine.expected(request).validated(below)[0].failed) is guard


def test_a_work_that_is_defined_again_is_known_by_its_new_reply() -> None:
    def define(reply: dict[str, str]) -> None:
        @work("defined-again", reply=reply)
        def defined(client: Any, request: Request) -> dict[str, Tensor]:
            return {}

    engine = engine_of()
    try:
        for reply in ({"a": "d"}, {"b": "M"}):
            define(reply)
            assert set(engine.expected(Request("defined-again")).form.schema) == set(reply)
    finally:
        del works._things["defined-again"]


class _Halves(Layer):
    """Sends updates in another form, which may change."""

    stage: ClassVar[Stage] = "quantise"
    dtype = "float16"

    def transported(self, fields: Fields) -> Fields:
        def unpack(arrays: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return arrays["delta"].to(dtype)

        return {**fields, "delta": replace(fields["delta"], dtype=self.dtype, packed=Packed(fields["delta"], unpack))}


def test_a_layer_that_sends_another_form_is_asked_every_time() -> None:
    layer = _Halves()
    engine = engine_of(None, layer)
    assert engine.expected(sgd()).form.schema["delta"][1] == torch.float16
    layer.dtype = "bfloat16"
    assert engine.expected(sgd()).form.schema["delta"][1] == torch.bfloat16


def test_lengths_count_from_the_buffers_of_this_round() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    problem = Problem(body, [Objective("left", "cross-entropy")])
    engine, start = engine_of(problem), problem.initial()
    stack = Stack([0], {"delta": torch.ones(1, problem.dim), "buffers": torch.full((1, 16), 3.0),
                        "losses": torch.ones(1, 1), "heard": torch.ones(1, 1), "weight": torch.ones(1)})  # fmt: skip
    for server in (0.0, 2.0, 3.0):
        shared = {**start, "buffers": torch.full((16,), server), "omega": torch.ones(1)}
        expected = engine.expected(Request("sgd", shared, options=HOW))
        at = expected.labels.index("its change of the buffer '1.running_mean'")
        far = (3.0 - server) * 8**0.5
        assert expected.validated(stack)[1][0, at] == pytest.approx(far and far + 1e-6 * server * 8**0.5, rel=1e-7)


def jacobian(name: str, t: int) -> Request:
    options = {**HOW, "compress": {"name": name, "budget": 2.0}, "rows": 2, "columns": 102}
    shared = small_problem().initial()
    return Request("jacobian", shared, options=options, round=t, folded=torch.full((6,), -1))


def test_what_is_kept_says_the_same_as_what_is_put_together_anew() -> None:
    """All kinds of exchanges in turns, honest and not: names, reasons and lengths to the last bit."""
    engine, no_stake = engine_of(), torch.tensor([1.0, 0.0])
    evaluate = [Request("evaluate", small_problem().initial(), options={"split": s}) for s in ("train", "test")]
    kinds = [sgd(), sgd(True), sgd(weight="size", lr=0.2), sgd(True, no_stake, weight="size"), *evaluate]
    kinds += [jacobian(name, t) for name in ("random-mask", "top-k") for t in (1, 2)]
    for request in [*kinds, *reversed(kinds)]:
        honest = replies(engine, request)
        anew = expected_replies(engine.parts, engine.population[""], engine.layers, request)
        kept = engine.expected(request)
        assert kept.labels == anew.labels
        for factor in (1.0, 1e4, float("nan")):
            for name in (n for n, a in honest.arrays.items() if a.is_floating_point()):
                arrays = {n: a.clone() for n, a in honest.arrays.items()}
                arrays[name][3] *= factor
                (a, lengths), (b, others) = (one.validated(Stack(CLIENTS, arrays)) for one in (kept, anew))
                assert (list(a.clients), a.failed) == (list(b.clients), b.failed)
                np.testing.assert_array_equal(lengths, others)
