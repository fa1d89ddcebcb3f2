"""Ways of gradient steps that give the same: which one is taken, and what happens where stacking is refused."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

from polyfed import FedAvg, Federation, Objective, Problem, train
from polyfed.client.autograd import Autograd
from polyfed.client.runner import ClientRunner
from polyfed.core.choices import Choices
from polyfed.core.errors import BadInput, reason
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.problem import Batch
from polyfed.core.registry import forget
from polyfed.core.work import work
from polyfed.engines.batched import Batched, ways
from polyfed.engines.batched.branches import Branches
from polyfed.engines.batched.capture import Waits, recordable
from polyfed.engines.batched.stacked import RECOMPUTED, Stacked, compiling
from polyfed.engines.batched.together import Together
from polyfed.engines.batched.ways import Settings, Ways
from polyfed.run.plan import one_part
from small import small_federation, small_problem, vector

GPU = ["cuda"] if torch.cuda.is_available() else []
ABOUT = {"clients": 10, "model": "a"}


class Recorded:
    """A program that takes as long as a test says."""

    def __init__(self, way: str, seconds: float) -> None:
        self.way, self.seconds = way, seconds

    def __call__(self, arguments: Any) -> Any:
        return self.seconds


class Trial:
    """What has been recorded, with the times that replays take, of ten clients that take ten steps each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.seconds, self.recorded = seconds, list[str]()
        self.error: Exception = torch.cuda.OutOfMemoryError("CUDA out of memory")
        monkeypatch.setattr(ways, "compared", lambda *calls, clock: [call() for call in calls])

    def record(self, way: str) -> Any:
        self.recorded.append(way)
        if way not in self.seconds:
            raise self.error
        return Recorded(way, self.seconds[way])

    def __call__(
        self, choices: Choices, way: Any = "auto", steps: int = 100, device: str = "cuda", problem: Any = None
    ) -> str:
        of = Ways(
            problem or small_problem(), Settings(torch.device(device), False, False, True, None, way), {}, choices
        )
        made: Any = of.recorded(self.record, (), "sgd", lambda: dict(ABOUT), steps)
        return str(made.way)


def test_the_faster_way_is_kept_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, choices = Trial(monkeypatch, stacked=0.08, branches=0.05), Choices()
    assert trial(choices) == "branches"
    assert trial.recorded == ["stacked", "branches"]
    assert choices.news() == [
        "The work 'sgd' of 10 clients goes in branches: 0.5 ms a client and step, stacked 0.8."
    ]  # fmt: skip
    assert trial(choices) == trial(Choices()) == "branches"  # of this run, and from the disk
    assert trial.recorded[2:] == ["branches", "branches"]


def test_a_stack_that_is_faster_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, choices = Trial(monkeypatch, stacked=0.05, branches=0.08), Choices()
    assert trial(choices) == "stacked"
    assert choices.news() == ["The work 'sgd' of 10 clients goes stacked: 0.5 ms a client and step, in branches 0.8."]


def convolving() -> Problem:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(256, 3)
    return Problem(nn.Sequential(*layers), [Objective("y", "cross-entropy")])


def test_convolutions_have_a_way_more(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, choices = Trial(monkeypatch, stacked=0.08, grouped=0.05, branches=0.06), Choices()
    assert trial(choices, problem=convolving()) == "grouped"
    assert trial.recorded == ["stacked", "grouped", "branches"]
    said = "goes stacked with grouped convolutions: 0.5 ms a client and step, in branches 0.6, stacked 0.8."
    assert choices.news() == [f"The work 'sgd' of 10 clients {said}"]


@pytest.mark.parametrize("way", ["stacked", "grouped", "branches"])
@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_convolutions_are_the_same_each_way(way: str, device: str) -> None:
    x, y = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
    federation = Federation.from_arrays(x, y, clients=3)
    algorithm = {"name": "fedavg", "lr": 0.1, "local_steps": 3, "batch_size": 4}
    engine = {"name": "batched", "device": device, "way": way, "compile": False}
    one, other = (train(convolving(), federation, algorithm, rounds=2, engine=e) for e in ("local", engine))
    assert torch.allclose(vector(one), vector(other), atol=1e-5)


def test_small_nets_are_not_compiled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, choices = Trial(monkeypatch, stacked=0.024, branches=0.001), Choices()
    assert trial(choices) == "stacked"
    assert trial.recorded == ["stacked"]
    assert choices.news() == ["The work 'sgd' of 10 clients goes stacked: 0.24 ms a client and step."]


def test_a_way_that_does_not_fit_into_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, choices = Trial(monkeypatch, stacked=0.08), Choices()
    assert trial(choices) == "stacked"
    assert "not in branches (OutOfMemoryError: CUDA out of memory)" in choices.news()[0]


def test_a_way_of_an_earlier_run_that_is_not_open_any_more_is_tried_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Trial(monkeypatch, stacked=0.08, branches=0.05)(Choices()) == "branches"
    later, choices = Trial(monkeypatch, stacked=0.08), Choices()
    later.error = RuntimeError("another forward by now")
    assert later(choices) == "stacked"
    assert later.recorded == ["branches", "stacked", "branches"]
    assert "goes stacked" in choices.sentences()[-1]
    later.error = torch.cuda.OutOfMemoryError("CUDA out of memory")  # as ever, then, with fewer clients
    Choices().make("way", ABOUT, "branches", "In branches.")
    with pytest.raises(torch.cuda.OutOfMemoryError):
        later(Choices())


def test_a_setting_measuring_and_the_host_need_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, choices = Trial(monkeypatch, stacked=0.08, branches=0.05), Choices()
    assert trial(choices, "stacked") == trial(choices, steps=0) == trial(choices, device="cpu") == "stacked"
    assert trial(choices, "branches") == "branches"
    assert trial.recorded == ["stacked", "stacked", "stacked", "branches"]
    assert not choices.tree()


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("method", ["fedavg", "fedcmoo", "fsmgda"])
def test_branches_give_the_same(method: str, device: str) -> None:
    algorithm = {"name": method, "lr": 0.1, "local_steps": 2, "batch_size": 8}
    holds = {"left": [True, False, True, True, True, True]}
    engine = {"name": "batched", "device": device, "way": "branches", "compile": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        one, other = (
            train(small_problem(), small_federation(holds=holds), algorithm, rounds=3, engine=e)
            for e in ("local", engine)
        )
    assert torch.allclose(vector(one), vector(other), atol=1e-5)


def record_with(program: Any, monkeypatch: pytest.MonkeyPatch, compile: bool = False) -> None:
    """From now on engines record as on a GPU."""
    init = Batched.__init__

    def recording(self: Batched, *args: Any, **settings: Any) -> None:
        init(self, *args, **settings)
        for part in self.together.values():
            part.settings, part.ways._tries = replace(part.settings, graph=True, compile=compile), True
            part.ways._settings = part.settings

    monkeypatch.setattr("polyfed.engines.batched.together.Captured", program)
    monkeypatch.setattr(Batched, "__init__", recording)


def test_a_round_is_recorded_both_ways_and_goes_on_with_the_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where six clients go in two pieces: one trial for both, and none of what only measures."""
    made: list[Any] = []

    class Program:
        def __init__(self, program: Any, arguments: Any, device: Any, pool: Any) -> None:
            self._program = program
            made.append(arguments)

        def __call__(self, arguments: Any) -> Any:
            return self._program(*arguments)

    record_with(Program, monkeypatch)
    monkeypatch.setattr(ways, "compared", lambda *calls, clock: [2.0, 1.0][: len(calls)])
    algorithm = {"name": "fedavg", "lr": 0.1, "local_steps": 4, "batch_size": 8}
    one, other = (
        train(small_problem(), small_federation(), algorithm, rounds=3, engine=engine, evaluate={"splits": ["train"]})
        for engine in ("local", {"name": "batched", "device": "cpu", "chunk": 3})
    )
    assert torch.allclose(vector(one), vector(other), atol=1e-5)
    assert len(made) == 2 + 1
    assert other.summary["choices"] == [
        "The work 'sgd' of 3 clients goes in branches: 83.3 ms a client and step, stacked 167."
    ]  # fmt: skip


class Branching(nn.Module):
    """Looks at numbers, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if float(out.detach().sum()) > 0 else 2 * out


def branching() -> Problem:
    torch.manual_seed(0)
    return Problem(Branching(), [Objective("left", "cross-entropy")])


def run(engine: Any, method: str = "fedavg", **more: Any) -> Any:
    algorithm = {"name": method, "lr": 0.1, "local_steps": 2, "batch_size": 8}
    return train(branching(), small_federation(), algorithm, rounds=2, engine=engine, **more)


class Checkpointed(nn.Module):
    """A part of it is computed again in the backward pass, as large models have it to save memory."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(lambda h: self.head(h).sin(), self.body(x).tanh(), use_reentrant=False)
        return found


@pytest.mark.parametrize("kind", [Stacked, Branches])
def test_gradient_checkpointing_is_refused_or_right(kind: type[Stacked], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled, its second forward would come when the module has its own parameters again."""
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: original(f, backend="aot_eager"))
    torch.manual_seed(0)
    problem = Problem(Checkpointed(), [Objective("a", "cross-entropy")])
    x = torch.stack([problem.initial()["x"] + 0.3 * (i + 1) for i in range(3)])
    inputs, targets, ones = torch.randn(3, 4, 5), torch.arange(12).view(3, 4) % 3, torch.ones(1)
    plain = Autograd(problem)
    expected = [
        plain.grad(x[i], torch.zeros(0), Batch(inputs[i], {"a": targets[i]}), ones, [True])[0] for i in range(3)
    ]

    def of(compiled: bool) -> Tensor:
        operators = kind(problem, torch.device("cpu"), compiled, {})

        def one(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            batch = Batch(inputs, {"a": targets}, torch.ones(4), {}, {})
            return operators.grad(x, torch.zeros(0), ones, ones, batch)[0]

        found: Tensor = vmap(one)(x, inputs, targets)
        return found

    with compiling():
        torch.testing.assert_close(of(True), torch.stack(expected))
        with pytest.raises(RuntimeError, match=r"the model has gradient checkpointing|vmap over"):  # torch 2.11's own
            of(False)


def test_gradient_checkpointing_goes_client_by_client_to_the_same_model() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=rng)
    federation = Federation.from_arrays(x, torch.arange(30) % 3, clients=3)

    def trained(engine: Any) -> Tensor:
        torch.manual_seed(0)
        problem = Problem(Checkpointed(), [Objective("a", "cross-entropy")])
        return vector(train(problem, federation, FedAvg(lr=0.5, local_steps=5), rounds=2, engine=engine, keep=False))

    with pytest.warns(RuntimeWarning, match="runs client by client"):
        found = trained({"name": "batched", "device": "cpu"})
    torch.testing.assert_close(found, trained("local"))


def test_what_cannot_be_stacked_goes_in_branches_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = run({"name": "batched", "device": "cpu", "chunk": 4})
    assert torch.allclose(vector(result), vector(run("local")), atol=1e-6)
    (said,) = result.summary["choices"]
    assert said.startswith("The work 'sgd' goes in branches, as it cannot be stacked (RuntimeError: vmap")
    assert [len(line.get("choices", ())) for line in result.history] == [1, 0]


@pytest.mark.parametrize("ends", [Waits("it looks at numbers"), RuntimeError("it synchronises in its own way"), None])
def test_what_cannot_be_stacked_is_recorded_where_it_can_be(
    ends: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at numbers would end a recording: it is tried once, and else there is none."""
    tried: list[Any] = []
    played: list[Any] = []

    class Program:
        def __init__(self, program: Any, arguments: Any, device: Any, pool: Any) -> None:
            program(*arguments)
            self._program = program
            tried.append(program)
            if ends is not None:
                raise ends

        def __call__(self, arguments: Any) -> Any:
            played.append(arguments)
            return self._program(*arguments)

    record_with(Program, monkeypatch)
    result = run({"name": "batched", "device": "cpu"})
    assert len(tried) == 1
    assert len(played) == (2 if ends is None else 0)
    assert torch.allclose(vector(result), vector(run("local")), atol=1e-6)
    said = [text for text in result.summary["choices"] if "is not recorded" in text]
    assert said == (["The work 'sgd' is not recorded: it looks at numbers."] if isinstance(ends, Waits) else [])


@pytest.mark.parametrize("method", ["fedavg", "fedcmoo"])
@pytest.mark.parametrize("ends", [Waits("it looks at numbers"), RuntimeError("it synchronises in its own way")])
def test_what_can_be_neither_goes_one_after_another_compiled(
    ends: Exception, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As compiled by torch without the code that it would write; the model, too, though it could not be stacked."""
    from torch._dynamo.backends.debugging import aot_eager

    class Program:
        def __init__(self, program: Any, arguments: Any, device: Any, pool: Any) -> None:
            program(*arguments)
            raise ends

    def backend(graph: Any, inputs: Any, **settings: Any) -> Any:
        graphs.append(str(graph.graph))
        return aot_eager(graph, inputs, **settings)

    def one_after_another(self: Together, *about: Any) -> None:
        if not self._looks:
            graphs.clear()
        singly(self, *about)

    graphs: list[str] = []
    original, singly = torch.compile, Together._go_singly
    plain = vector(run("local", method))
    record_with(Program, monkeypatch, compile=True)
    monkeypatch.setattr(torch, "compile", lambda f, **_: original(f, backend=backend))
    monkeypatch.setattr(Together, "_go_singly", one_after_another)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = run({"name": "batched", "device": "cpu"}, method, evaluate={"splits": ["train"]})
    assert any("linear" in graph for graph in graphs)
    assert torch.allclose(vector(result), plain, atol=1e-6)
    said = [text for text in result.summary["choices"] if "one client after another" in text]
    work = {"fedavg": ["sgd"], "fedcmoo": ["jacobian", "sgd"]}[method]
    assert sorted(text.partition("'")[2].partition("'")[0] for text in said) == work
    assert all("compiled: it cannot be stacked (" in text for text in said)
    assert str(ends) in said[0]
    (measuring,) = [text for text in result.summary["choices"] if "'evaluate' goes" in text]
    assert "in branches" in measuring  # no gradients, and so no reason to compile a client alone
    assert all("nor recorded (as another work of this model)" in text for text in said[1:])


@pytest.mark.parametrize("back", [False, True])
def test_what_the_compiler_cannot_take_goes_without_it(back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, and no client by client; nor is anything made anew in each round."""

    class Program:
        def __init__(self, program: Any, arguments: Any, device: Any, pool: Any) -> None:
            program(*arguments)
            raise Waits("it looks at numbers")

    def failing(*tensors: Tensor) -> Any:
        raise AssertionError("of the compiler's own")

    def compiled(program: Any, **settings: Any) -> Any:
        def call(*tensors: Tensor) -> Any:
            found = program(*tensors) if back else failing()
            [t.register_hook(failing) for t in found if t.requires_grad]
            return found

        return call

    def made(self: Ways, *about: Any) -> Stacked:
        every.append(about)
        return new(self, *about)

    every: list[Any] = []
    new = Ways._new
    plain = run("local", evaluate={"splits": ["train"]})
    record_with(Program, monkeypatch, compile=True)
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(Ways, "_new", made)
    monkeypatch.setattr(Together, "_alone", lambda self, work: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = run({"name": "batched", "device": "cpu", "chunk": 2}, evaluate={"splits": ["train"]})
    assert torch.allclose(vector(result), vector(plain), atol=1e-6)
    losses = [[line["losses"]["left"] for line in one.history] for one in (result, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(every) == len(set(every))
    said = [text for text in result.summary["choices"] if "is not compiled" in text]
    why = "RuntimeError: it cannot be compiled, by AssertionError: of the compiler's own"
    assert said[0] == f"The work 'sgd' is not compiled: {why}."
    assert len(said) == (1 if back else 2)


def test_work_that_cannot_be_stacked_leaves_the_others_of_its_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the model is not the reason, they go as they did, and new ones are tried."""
    looked = [False]

    class Program:
        def __init__(self, program: Any, arguments: Any, device: Any, pool: Any) -> None:
            looked[0], self._program = False, program
            program(*arguments)
            if looked[0]:
                raise Waits("it looks at numbers")

        def __call__(self, arguments: Any) -> Any:
            return self._program(*arguments)

    @work("peek", reply={"z": ""})
    def peek(client: Any, request: Request) -> Any:
        looked[0] = True
        return {"z": client.holds.sum() if float(client.holds[0]) > 0 else client.holds.max()}

    record_with(Program, monkeypatch, compile=True)
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    monkeypatch.setattr(ways, "compared", lambda *calls, clock: [0.0])
    problem, federation = small_problem(), small_federation(holds={"right": [False, *[True] * 5]})
    federation.targets["right"][federation.rows("train", 0)] = 7  # what a client does not hold may be anything
    engine = Batched(one_part(problem, federation), Layers(()), device="cpu")
    sgd = {"lr": 0.1, "steps": 1, "batch_size": 4}
    shared = {**problem.initial(), "omega": torch.tensor([0.5, 0.5], dtype=problem.dtype)}
    try:
        asked: list[Any] = [("sgd", sgd), ("peek", {}), ("sgd", sgd), ("evaluate", {"split": "train"})]
        for t, (name, options) in enumerate(asked):
            (*stacks,) = engine.ask([0, 1], Request(name, shared, options=options, round=t))
            assert [list(stack.clients) for stack in stacks] == ([[0], [1]] if name == "peek" else [[0, 1]])
    finally:
        forget(__name__)
    (part,) = engine.together.values()
    assert part.ways.refused.keys() == part._one_by_one.keys() == {"peek"}
    assert [text.partition(" (")[0] for text in engine.choices.sentences() if "one client after" in text] == [
        "The work 'peek' goes one client after another, compiled: it cannot be stacked"
    ]


def test_one_after_another_activations_are_computed_again_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What does not fit as it is, does so then: nobody fails, and all later programs are made so."""
    from torch._dynamo.backends.debugging import aot_eager
    from torch._functorch import config

    class Program:
        def __init__(self, program: Any, arguments: Any, device: Any, pool: Any) -> None:
            program(*arguments)
            raise Waits("it looks at numbers")

    def backend(graph: Any, inputs: Any, **settings: Any) -> Any:
        budgets.append(config.activation_memory_budget)
        if budgets[-1] == 1.0:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return aot_eager(graph, inputs, **settings)

    budgets: list[float] = []
    original = torch.compile
    plain = vector(run("local"))
    record_with(Program, monkeypatch, compile=True)
    monkeypatch.setattr(torch, "compile", lambda f, **_: original(f, backend=backend))
    monkeypatch.setattr(Ways, "operators", lambda self, way: self._new(way, False))  # the single clients' alone
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = run({"name": "batched", "device": "cpu"})
    assert result.summary["failures"] == 0
    assert torch.allclose(vector(result), plain, atol=1e-6)
    assert budgets[0] == 1.0
    assert {*budgets[1:]} == {RECOMPUTED}
    said = [text for text in result.summary["choices"] if "computed again" in text]
    assert said == ["Activations are computed again for gradients: memory ran out with one client."]


def test_a_look_at_the_model_without_memory_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def grad(self: Stacked, *arguments: Any) -> Any:
        raise error

    problem, federation = small_problem(), small_federation()
    settings = Settings(torch.device("cpu"), False, False, False, None)
    of, some = Ways(problem, settings, {}, Choices()), federation.take(torch.arange(2))
    assert of.refusal(some, [True, True], measures=False) == ""
    monkeypatch.setattr(Stacked, "grad", grad)
    error: Exception = torch.cuda.OutOfMemoryError("CUDA out of memory")
    assert of.refusal(some, [True, True], measures=False) == ""
    error = RuntimeError("vmap: no")
    assert of.refusal(some, [True, True], measures=False) == "RuntimeError: vmap: no"


def test_memory_that_runs_out_before_the_first_client_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of single clients has a model of its own, which has to fit, too."""
    monkeypatch.setattr(Together, "_loops", lambda self, work: True)
    made, forgotten = [0], [0]
    init, less = ClientRunner.__init__, Batched._forget

    def crowded(self: ClientRunner, *arguments: Any, **settings: Any) -> None:
        made[0] += "make_room" in settings  # not the server's own
        if made[0] == 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        init(self, *arguments, **settings)

    def forgetting(self: Batched) -> None:
        forgotten[0] += 1
        less(self)

    plain = vector(run("local"))
    monkeypatch.setattr(ClientRunner, "__init__", crowded)
    monkeypatch.setattr(Batched, "_forget", forgetting)
    assert vector(run({"name": "batched", "device": "cpu"})).equal(plain)
    assert forgotten == [1]


@pytest.mark.parametrize("singly", [False, True])
def test_an_engine_goes_with_its_run(singly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with the memory that it has, and not when Python next looks for cycles."""
    monkeypatch.setattr(Together, "_loops", lambda self, work: singly)
    gc.collect()
    gc.disable()
    try:
        engine = Batched(one_part(small_problem(), small_federation()), Layers(()), device="cpu")
        sgd = {"lr": 0.1, "steps": 1, "batch_size": 4}
        shared = {**small_problem().initial(), "omega": torch.tensor([0.5, 0.5])}
        list(engine.ask([0, 1], Request("sgd", shared, options=sgd)))
        of: list[Any] = [weakref.ref(engine), *map(weakref.ref, engine.together.values())]
        del engine
        assert [one() for one in of] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_a_program_that_waits_is_found_out_before_it_is_recorded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def looks(t: Tensor) -> Tensor:
        if device == "cpu" and torch.cuda.get_sync_debug_mode():
            raise RuntimeError("called a synchronizing CUDA operation")
        return 2 * t if float(t.sum()) > 0 else t

    if device == "cpu":  # torch's switch is one of its C library, which has none without a GPU
        mode: list[Any] = [0]
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
        monkeypatch.setattr(
            torch.cuda, "set_sync_debug_mode", lambda to: mode.__setitem__(0, 2 if to == "error" else to)
        )
    ones = torch.ones(3, device=device)
    with pytest.raises(Waits), recordable():
        looks(ones)
    with pytest.raises(RuntimeError, match="another"), recordable():
        raise RuntimeError("another")
    for draw in (random.random, np.random.rand, lambda: torch.rand([])):
        with pytest.raises(Waits, match="draws numbers at random"), recordable():
            draw()  # which a replay would repeat
    with recordable():
        found = ones + ones
    assert found.tolist() == [2.0, 2.0, 2.0]
    assert torch.cuda.get_sync_debug_mode() == 0
    assert looks(ones).tolist() == [2.0, 2.0, 2.0]


class Stream:
    """A GPU's stream that is none, and those whose work it waits for."""

    def __init__(self) -> None:
        self.after: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.after.append(other)


@pytest.mark.parametrize("fails", [False, True])
def test_all_branches_are_joined_also_where_one_fails(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before, streams = Stream(), [Stream() for _ in range(4)]
    used: list[Stream] = []

    def one(t: Tensor) -> tuple[Tensor]:
        if fails and len(used) == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return (2 * t,)

    def enter(stream: Stream) -> Any:
        used.append(stream)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: before)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    branches = Branches(small_problem(), torch.device("cpu"), False, {})
    monkeypatch.setattr(branches, "_streams", streams)
    with pytest.raises(torch.cuda.OutOfMemoryError) if fails else nullcontext():
        assert torch.equal(branches._each(one, [torch.ones(3, 2)])[0], 2 * torch.ones(3, 2))
    assert before.after == streams[:3]  # as many as there are clients
    assert all(stream.after == [before] for stream in streams[:3])
    assert used == streams[: 2 if fails else 3]


@pytest.mark.parametrize("way", ["auto", "stacked", "branches"])
def test_client_by_client_with_one_warning_is_the_last_resort(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why the work could not be stacked, where both ways have failed."""

    def fails(*arguments: Any) -> Any:
        raise IndexError("out of range")

    monkeypatch.setattr(Branches, "_each", fails)
    why = "IndexError: out of range" if way == "branches" else "RuntimeError: vmap"
    with pytest.warns(RuntimeWarning, match=f"The work 'sgd' runs client by client: {why}") as caught:
        result = run({"name": "batched", "device": "cpu", "way": way})
    assert len(caught) == 1
    assert vector(result).equal(vector(run("local")))
    assert "choices" not in result.summary


def test_an_error_is_told_with_the_one_that_it_comes_from() -> None:
    def compiler() -> None:
        try:
            raise ValueError("shapes differ\nand more")
        except ValueError as error:
            raise RuntimeError("when making fake tensor call\nExplanation:") from error

    with pytest.raises(RuntimeError) as caught:
        compiler()
    assert reason(caught.value) == "RuntimeError: when making fake tensor call, by ValueError: shapes differ"
    assert reason(ValueError()) == "ValueError: "


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(BadInput, match=r"engine\.way should be 'auto', 'stacked', 'grouped' or 'branches'\."):
        run({"name": "batched", "way": "sideways"})
    with pytest.raises(BadInput, match=r"engine\.recompute should be 'auto', True or False\. Found 'maybe'"):
        run({"name": "batched", "recompute": "maybe"})
