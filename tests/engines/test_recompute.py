"""Activations that are computed again for a gradient: less memory, the same gradient; where memory is short."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed import Objective, Problem
from polyfed.core.choices import Choices
from polyfed.core.errors import BadInput
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.problem import Batch
from polyfed.engines.batched import Batched
from polyfed.engines.batched.chunks import Chunks
from polyfed.engines.batched.stacked import Stacked, compiling
from polyfed.engines.batched.together import Group, Together
from polyfed.engines.batched.ways import Settings, Ways
from small import small_federation, small_problem

HOST = torch.device("cpu")
CLIENTS, ROWS, WIDE = 2, 64, 6


def deep() -> Problem:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDE, WIDE), nn.GELU(), nn.LayerNorm(WIDE))]
    return Problem(nn.Sequential(*layers, nn.Linear(WIDE, 3)), [Objective("y", "cross-entropy")])


class Watched(Stacked):
    """Notes how many bytes a program keeps for its gradient."""

    kept = 0

    def _programs(self, spec: Any) -> tuple[Any, ...]:
        program, *others = super()._programs(spec)

        def noted(*tensors: Tensor) -> Any:
            losses, after = program(*tensors)
            self.kept = sum(t.numel() * t.element_size() for t in getattr(losses.grad_fn, "saved_tensors", ()))
            return losses, after

        return noted, *others


def test_a_compiled_gradient_keeps_less_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compiler takes a step apart for a GPU, without the code it would write."""
    from torch._dynamo.backends.common import aot_autograd  # seconds, which only this test needs
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def as_it_is(graph: Any, inputs: Any) -> Any:
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=as_it_is, partition_fn=min_cut_rematerialization_partition)
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f: original(f, backend=backend))
    problem = deep()
    torch.manual_seed(1)
    x = problem.initial()["x"].repeat(CLIENTS, 1) + 0.1 * torch.randn(CLIENTS, problem.dim)
    ones, none = torch.ones(CLIENTS, 1), torch.zeros(CLIENTS, 0)
    images, y = torch.randn(CLIENTS, ROWS, WIDE), torch.randint(0, 3, (CLIENTS, ROWS))
    batch = Batch(images, {"y": y}, torch.ones(CLIENTS, ROWS), {}, {})
    found, kept = [], []
    with compiling():
        for compiled, recompute in ((False, False), (True, False), (True, True)):
            torch._dynamo.reset()
            of = Watched(problem, HOST, compiled, {}, recompute)
            spec, flat = of._flat(batch)
            found.append(of._grads(spec, x, ones, none, ones, *flat)[0])
            kept.append(of.kept)
    assert kept[2] < 0.7 * kept[1]
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def ways(compiled: bool, recompute: Any = "auto") -> Ways:
    return Ways(small_problem(), Settings(HOST, False, compiled, False, None, "auto", recompute), {}, Choices())


def test_only_once_and_only_where_it_can_be() -> None:
    short = ways(compiled=True)
    before = short.operators("stacked")
    assert not short.recompute
    assert short.keep_less()
    assert short.recompute
    assert short.operators("stacked") is not before
    assert not short.keep_less()
    assert not ways(compiled=True, recompute=False).keep_less()
    assert not ways(compiled=False).keep_less()
    assert ways(compiled=True, recompute=True).recompute


def chunk_of_one(together: Together, group: Group) -> dict[str, Any]:
    made = Choices()
    made.make("chunk", together.about(group.request, 0), 1, "One at once.")
    return made.tree()


def test_a_client_that_does_not_fit_alone_is_tried_so_before_the_run_ends() -> None:
    part = Part(small_problem(), small_federation())
    engine = Batched({"": part}, Layers(), device="cpu")
    together, chunks = engine.together[""], Chunks(0, HOST, engine.choices)
    together.ways = ways(compiled=True)
    request = Request(
        "sgd", {**part.problem.initial(), "omega": torch.ones(2)}, options={"lr": 0.1, "steps": 2, "batch_size": 8}
    )
    (group,) = together.groups([0, 1], request)
    chunks.smaller(together, group, 1)
    assert together.ways.recompute
    with pytest.raises(BadInput, match="One client alone does not fit"):
        chunks.smaller(together, group, 1)
    resumed, together.ways = Choices(), ways(compiled=True)
    resumed.load({**engine.choices.tree(), **chunk_of_one(together, group)})
    assert Chunks(0, torch.device("cuda"), resumed)(together, group) == 1
    assert together.ways.recompute


@pytest.mark.parametrize("writable", [True, False])
def test_compiled_code_is_kept_where_it_can_be(writable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that it is taken out again after the test
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv(
        "TRITON_CACHE_DIR", "/tmp/torchinductor/triton/0"
    )  # as torch does when it has compiled something
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if not writable:
        (tmp_path / "cache").write_text("a file")
    with compiling():
        found = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    compiled = str(tmp_path / "cache" / "polyfed" / "compiled")
    assert found == (compiled if writable else None)
    assert os.environ["TRITON_CACHE_DIR"] == (f"{compiled}/triton/0" if writable else "/tmp/torchinductor/triton/0")


def test_the_users_place_for_kernels_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "mine")
    with compiling():
        assert os.environ["TRITON_CACHE_DIR"] == "mine"
    monkeypatch.delenv("TRITON_CACHE_DIR")
    with compiling():
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton" / "0")
