"""Many clients as one program give what one after another gives."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from polyfed import Federation, Layer, Objective, Problem, Rows, train
from polyfed.algorithms import algorithms
from polyfed.client.device import Device
from polyfed.client.memory import Job
from polyfed.client.runner import ClientRunner, perform, unchecked
from polyfed.core.engine import Engine, engines
from polyfed.core.errors import BadInput
from polyfed.core.layer import Layers, Outgoing
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.registry import forget
from polyfed.core.work import work
from polyfed.engines.batched import Batched
from polyfed.engines.batched.stacked import Stacked
from polyfed.engines.batched.together import Group, Together
from polyfed.layers.attacks import Misreport
from polyfed.models import Headed
from polyfed.testing import check_engine, open_door
from small import small_federation, small_problem

GPU = ["cuda"] if torch.cuda.is_available() else []  # where there is one, what holds on the CPU holds there, too

METHODS = [
    ("fedavg", {}), ("fedprox", {"mu": 0.3}), ("fedavg", {"momentum": 0.9, "local_steps": 7}),
    ("fedavg", {"optimizer": "adam", "lr": 0.01}), ("fedavg", {"local_epochs": 2, "weighting_by": "size"}),
    ("fedavg", {"batch_size": 0}), ("fedmgda+", {}), ("q-fedavg", {}), ("fsmgda", {}), ("fmgda", {}),
    ("fsmgda", {"upload": "combined", "width": 16}), ("fedcmoo", {"width": 16}), ("fedcmoo", {"compress": "exact"}),
    ("fedcmoo", {"width": 16, "exchanges": 1}), ("fedcmoo-pref", {"width": 16}),
    ("fedcmoo", {"compress": "client-grams"}), ("fedcmoo", {"compress": "top-k"}),
]  # fmt: skip


def uneven(holds: dict[str, list[bool]] | None = None) -> Federation:
    """Clients with 1 to 25 rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    targets = {name: (x @ rng.normal(size=(5, 3))).argmax(1) for name in ("left", "right")}
    cuts = np.cumsum([1, 5, 9, 20, 25, 10, 8])
    return Federation.from_arrays(
        x,
        targets,
        clients=np.split(np.arange(90), cuts)[:7],
        holds=holds,
        test=(x[78:], {n: t[78:] for n, t in targets.items()}),
    )


def engine_of(name: str, problem: Problem, federation: Federation, *layers: Layer, **settings: Any) -> Engine:
    """An engine with these as its only part."""
    made: Engine = engines[name]({"": Part(problem, federation)}, Layers(layers), **settings)
    return made


def flat(result: Any) -> torch.Tensor:
    return torch.cat([v.reshape(-1) for v in result.model.state_dict().values()])


@pytest.mark.parametrize("engine", [("batched", device) for device in ["cpu", *GPU]] + [("local", "cuda")] * len(GPU))
@pytest.mark.parametrize(("name", "settings"), METHODS)
def test_batched_equals_local(name: str, settings: dict[str, Any], engine: tuple[str, str]) -> None:
    holds = {"left": [True, True, False, True, True, True, True]}
    local = {"lr": 0.1, "local_steps": 4, "batch_size": 8}
    algorithm = algorithms[name](**{**local, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # no method of these may fall back to the loop
        other = dict(zip(("name", "device"), engine, strict=True)) | ({"chunk": 2} if engine[0] == "batched" else {})
        other |= {"compile": False} if engine == ("batched", "cuda") else {}  # takes long; the net below is compiled
        runs = [
            train(small_problem(), uneven(holds), algorithm, rounds=4, cohort=5, engine=engine)
            for engine in ("local", other)
        ]
    assert torch.allclose(flat(runs[0]), flat(runs[1]), atol=2e-5)
    assert runs[0].summary["bytes_up"] == runs[1].summary["bytes_up"]


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_twenty_rounds_of_a_convolution_net_agree(device: str) -> None:
    from polyfed.data import Dataset
    from polyfed.models import models

    rng = np.random.default_rng(0)
    x = rng.random((60, 1, 28, 28), dtype=np.float32)
    targets = {name: rng.integers(0, 10, 60) for name in ("left", "right")}
    objectives = tuple(Objective(name, "cross-entropy") for name in targets)
    results = []
    for engine in ("local", {"name": "batched", "device": device}):
        torch.manual_seed(0)
        model = models["two-digit-net"](Dataset(x, targets, objectives), dropout=0.0)
        federation = Federation.from_arrays(x, targets, clients=3)
        algorithm = algorithms["fedcmoo"](lr=0.05, local_steps=2, batch_size=8)
        results.append(train(Problem(model, objectives), federation, algorithm, rounds=20, cohort=2, engine=engine))
    assert torch.allclose(flat(results[0]), flat(results[1]), atol=1e-4)


def images(clients: int = 3) -> tuple[Problem, Federation]:
    """Two convolutions and a head over 6x6 images."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12 * clients, 1, 6, 6)).astype(np.float32)
    targets = {name: rng.integers(0, 3, len(x)) for name in ("left", "right")}
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, bias=False), nn.Flatten())
    model = Headed(body, {name: nn.Linear(48, 3) for name in targets})
    return Problem(model, [Objective(n, "cross-entropy") for n in targets]), Federation.from_arrays(
        x, targets, clients=clients
    )


@pytest.mark.parametrize("name", ["fedavg", "fsmgda", "fedcmoo"])
def test_a_compiled_step_is_the_same_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.compile sees it, without the code it would write; a Jacobian goes backward more than once."""
    compiled = []

    def compile(f: Any) -> Any:
        compiled.append(f)
        return original(f, backend="aot_eager")

    original, init = torch.compile, Stacked.__init__
    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(Stacked, "__init__", lambda s, problem, device, _, *more: init(s, problem, device, True, *more))
    results = []
    for engine in ("local", {"name": "batched", "device": "cpu"}):
        algorithm = algorithms[name](lr=0.1, local_steps=2, batch_size=8)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            results.append(train(*images(), algorithm, rounds=2, engine=engine))
    assert compiled
    assert torch.allclose(flat(results[0]), flat(results[1]), atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_augmentation_is_keyed_alike(device: str) -> None:
    from polyfed.data.augment import Rotation

    rng = np.random.default_rng(0)
    x = rng.random((24, 1, 8, 8), dtype=np.float32)
    results = []
    for engine in ("local", {"name": "batched", "device": device}):
        torch.manual_seed(0)
        problem = Problem(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), [Objective("y", "cross-entropy")])
        federation = replace(Federation.from_arrays(x, rng.integers(0, 3, 24) * 0, clients=3), augment=Rotation(25))
        results.append(
            train(problem, federation, algorithms["fedavg"](batch_size=4, local_steps=3), rounds=2, engine=engine)
        )
    assert torch.allclose(flat(results[0]), flat(results[1]), atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_what_vmap_cannot_take_falls_back_with_one_warning(device: str) -> None:
    torch.manual_seed(0)
    normed = Problem(
        nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None)), [Objective("left", "cross-entropy")]
    )
    with pytest.warns(RuntimeWarning, match="training changes '1.running_mean', a buffer") as caught:
        stacked = train(
            normed, small_federation(), algorithms["fedavg"](), rounds=3, engine={"name": "batched", "device": device}
        )
    assert len(caught) == 1
    assert torch.allclose(
        flat(stacked), flat(train(normed, small_federation(), algorithms["fedavg"](), rounds=3)), atol=1e-5
    )


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("compress", ["rand-svd", "top-k", "random-mask"])
def test_every_compressor_goes_with_many_clients_at_once(compress: str, device: str) -> None:
    fedcmoo = algorithms["fedcmoo"](compress={"name": compress, "budget": 1.2}, ways=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        engine = {"name": "batched", "device": device, "compile": False}
        result = train(small_problem(), small_federation(), fedcmoo, rounds=3, engine=engine)
    assert "choices" not in result.summary or "branches" not in str(result.summary["choices"])
    assert torch.allclose(flat(result), flat(train(small_problem(), small_federation(), fedcmoo, rounds=3)), atol=1e-5)


class Clip(Layer):
    """Updates of at most this norm, selected as vmap asks."""

    def __init__(self, norm: float) -> None:
        self.norm, self.seen = norm, 0

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        self.seen += 1
        found = {name: out.arrays[name] for name in out.named("update")}
        short = {name: a * torch.clamp(self.norm / a.norm(), max=1.0) for name, a in found.items()}
        return {**out.arrays, **short}


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("layers", [[Misreport(clients=[1], factor=10.0)], [Misreport(clients=[1, 4]), Clip(0.01)]])
def test_layers_act_all_the_same(layers: list[Layer], device: str) -> None:
    plain = train(small_problem(), small_federation(), algorithms["fedavg"](), rounds=2)
    local = train(small_problem(), small_federation(), algorithms["fedavg"](), rounds=2, layers=layers)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # nothing falls back
        batched = train(small_problem(), small_federation(), algorithms["fedavg"](), rounds=2, layers=layers,
                        engine={"name": "batched", "device": device})  # fmt: skip
    assert torch.allclose(flat(local), flat(batched), atol=1e-5)
    assert not torch.allclose(flat(local), flat(plain), atol=1e-3)


class Shy(Layer):
    """Names clients that have to be run one at a time."""

    stage = "attack"

    @property
    def singly(self) -> list[int]:
        return [1, 2]


def test_attackers_and_clips_run_with_the_others() -> None:
    problem, layers = small_problem(), [Misreport(clients=[1, 2], factor=10.0), Clip(0.01)]
    fleet = open_door(problem, small_federation(), "batched", layers=layers, settings={"device": "cpu"})
    shared = {**problem.initial(), "omega": torch.tensor([0.5, 0.5])}
    fleet.begin(1)
    stacks = list(fleet.ask(range(6), Request("sgd", shared, options={"lr": 0.1, "steps": 2, "batch_size": 8})))
    assert [list(s.clients) for s in stacks] == [[0, 1, 2, 3, 4, 5]]


def test_only_clients_that_a_layer_names_are_run_one_at_a_time() -> None:
    """The others go together, and so does everybody where work only measures; a clip runs under vmap."""
    problem, clip, attack = small_problem(), Clip(0.01), Shy()
    fleet = open_door(problem, small_federation(), "batched", layers=[attack, clip], settings={"device": "cpu"})
    shared = {**problem.initial(), "omega": torch.tensor([0.5, 0.5])}
    request = Request("sgd", shared, options={"lr": 0.1, "steps": 2, "batch_size": 8})
    fleet.begin(1)
    stacks = list(fleet.ask(range(6), request))
    assert [list(s.clients) for s in stacks] == [[0], [1], [2], [3, 4, 5]]
    assert clip.seen == 3
    assert torch.allclose(torch.cat([s["delta"] for s in stacks]).norm(dim=1), torch.full((6,), 0.01))
    measured = fleet.ask(range(6), Request("evaluate", problem.initial(), options={"split": "train"}))
    assert [list(s.clients) for s in measured] == [[0, 1, 2, 3, 4, 5]]
    assert clip.seen == 3


class Remembers(Layer):
    remembers = True


def test_layers_that_remember_go_client_by_client() -> None:
    with pytest.warns(RuntimeWarning, match="client by client: a layer keeps state at the clients"):
        engine = engine_of("batched", small_problem(), small_federation(), Remembers(), device="cpu")
    stacks = engine.ask(range(6), Request("evaluate", small_problem().initial(), options={"split": "train"}))
    assert [list(s.clients) for s in stacks] == [[c] for c in range(6)]


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_batched_holds_what_every_engine_must(device: Device) -> None:
    check_engine(lambda parts, layers: Batched(parts, layers, device=device, chunk=3, compile=False))


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_recurrent_models_run_together_too(device: str) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTM(5, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.gru(self.lstm(x)[0])[0][:, -1])
            return out

    rng = np.random.default_rng(0)
    federation = Federation.from_arrays(
        rng.normal(size=(30, 7, 5)).astype(np.float32), rng.integers(0, 3, 30), clients=3
    )
    results = []
    for engine in ("local", {"name": "batched", "device": device}):
        torch.manual_seed(0)
        problem = Problem(Reads(), [Objective("y", "cross-entropy")])
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            results.append(train(problem, federation, algorithms["fedavg"](batch_size=4), rounds=2, engine=engine))
    assert torch.allclose(flat(results[0]), flat(results[1]), atol=1e-5)


def test_what_is_in_evaluation_mode_stays_there() -> None:
    results = []
    for engine in ("local", {"name": "batched", "device": "cpu"}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        model[1].eval()
        problem = Problem(model, [Objective("left", "cross-entropy")])
        results.append(train(problem, small_federation(), algorithms["fedavg"](), rounds=2, engine=engine))
    assert torch.allclose(flat(results[0]), flat(results[1]), atol=1e-5)


def test_splits_may_leave_clients_out() -> None:
    federation = small_federation()
    some = replace(federation, test=Rows.of([[0, 1], [2]]))  # two of six
    engine = engine_of("batched", small_problem(), some, device="cpu")
    start = small_problem().initial()
    (stack,) = engine.ask(range(6), Request("evaluate", start, options={"split": "test"}))
    assert stack["n"].tolist() == [2, 1, 0, 0, 0, 0]
    (stack,) = engine.ask([4, 5], Request("evaluate", start, options={"split": "test"}))
    assert stack["n"].tolist() == [0, 0]
    with pytest.raises(BadInput, match="No client has valid rows"):
        list(engine.ask([0], Request("evaluate", start, options={"split": "valid"})))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The engine as on a GPU, where programs are recorded: each is used again for arguments of the same shapes."""
    made: list[Any] = []

    class Recorded:
        def __init__(self, program: Any, arguments: Any, device: Any, pool: Any) -> None:
            self.program, self.places = program, pytree.tree_map(lambda t: t.shape, arguments)
            program(*arguments)
            made.append(self)

        def __call__(self, arguments: Any) -> Any:
            assert pytree.tree_map(lambda t: t.shape, arguments) == self.places
            return self.program(*arguments)  # with the bounds of the cohort that it was made for

    init = Batched.__init__

    def recording(self: Batched, *args: Any, **settings: Any) -> None:
        init(self, *args, **settings)
        for part in self.together.values():
            part.settings = replace(part.settings, graph=True)

    monkeypatch.setattr("polyfed.engines.batched.together.Captured", Recorded)
    monkeypatch.setattr(Batched, "__init__", recording)
    return made


def dropping() -> Problem:
    """A net of two objectives that drops half of its units."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5))
        model = Headed(body, {name: nn.Linear(8, 3) for name in ("left", "right")})
    return Problem(model, [Objective(name, "cross-entropy") for name in ("left", "right")])


def dropped(method: Any, device: str = "cpu", **how: Any) -> Any:
    """A run of it with the cohort in two chunks; the server has test data of its own."""
    engine = {"name": "batched", "device": device, "chunk": 2, "compile": False}
    return train(dropping(), small_federation(), method, **{"rounds": 3, "cohort": 4, "engine": engine, **how})


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("name", ["fedavg", "fsmgda", "fedcmoo"])
def test_dropout_follows_the_seed_and_not_the_callers_generator(name: str, device: str) -> None:
    method = algorithms[name](local_steps=3, batch_size=8)
    checksums = []
    for callers, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(callers)
        before = torch.get_rng_state()
        checksums.append(dropped(method, device, seed=seed).summary["model_sha256"])
        assert torch.equal(torch.get_rng_state(), before)
    assert checksums[0] == checksums[1] != checksums[2]


def test_recording_a_program_does_not_change_dropout(request: pytest.FixtureRequest) -> None:
    """It draws, too; what counts is drawn after it."""
    method = algorithms["fedavg"](local_steps=3, batch_size=8)
    plain = flat(dropped(method))
    made: list[Any] = request.getfixturevalue("recorded")
    assert torch.allclose(flat(dropped(method)), plain, atol=1e-6)
    assert made


def test_measuring_does_not_change_dropout() -> None:
    """On the server's data, on the clients', and of their progress."""
    method = algorithms["fedcmoo"](local_steps=3, batch_size=8)
    asked = ({"every": 3}, {"every": 1}, {"every": 3, "progress": 1, "clients": True, "stationarity": 1})
    assert len({dropped(method, evaluate=each).summary["model_sha256"] for each in asked}) == 1


def test_a_resumed_run_drops_what_the_whole_run_does(tmp_path: Path) -> None:
    method = algorithms["fedavg"](local_steps=3, batch_size=8)
    whole = dropped(method, rounds=4)
    dropped(method, rounds=2, out=tmp_path / "run")
    resumed = dropped(method, rounds=4, out=tmp_path / "run", resume=True)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]


def test_every_round_and_chunk_drops_other_units_and_every_exchange_the_same() -> None:
    """Two clients with the same row, one batch: only dropout tells their gradients apart."""
    x = np.ones((2, 5), dtype=np.float32)
    federation = Federation.from_arrays(x, {name: np.zeros(2, dtype=int) for name in ("left", "right")}, clients=2)
    engine = engine_of("batched", dropping(), federation, device="cpu", chunk=1)
    start = {**dropping().initial(), "omega": torch.ones(2)}

    def gradients(t: int, exchange: int = 1) -> list[torch.Tensor]:
        request = Request("gradient", start, options={"batch_size": 0}, seed=3, round=t, exchange=exchange)
        return [stack["g"][0] for stack in engine.ask([0, 1], request)]

    torch.manual_seed(0)
    before = torch.get_rng_state()
    (a, b), (c, d) = gradients(1), gradients(2)
    assert not any(torch.equal(*two) for two in ((a, b), (a, c), (b, d), (c, d)))
    assert all(torch.equal(one, again) for one, again in zip((a, b), gradients(1, exchange=2), strict=True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def own_work() -> Iterator[None]:
    """Work that a test registers is gone after it."""
    yield
    forget(__name__)


def ragged() -> Federation:
    """Thirty clients with 1 to 59 rows."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 30)
    x = rng.normal(size=(lengths.sum(), 5)).astype(np.float32)
    targets = {name: (x @ rng.normal(size=(5, 3))).argmax(1) for name in ("left", "right")}
    return Federation.from_arrays(x, targets, clients=np.split(np.arange(len(x)), lengths.cumsum()[:-1]))


@pytest.mark.parametrize(
    ("method", "settings", "measured", "most"),
    [
        # four sizes of the largest client, times two of the smallest that has several batches, and the evaluation
        ("fedavg", {"local_steps": 4}, {}, 4 * 2 + 1),
        ("fedavg", {"local_steps": 2, "lr": {"beta": 1.0, "gamma": 9.0}}, {}, 4 + 1),  # another step size every round
        ("q-fedavg", {"local_epochs": 2, "lr": {"beta": 1.0, "gamma": 9.0}}, {}, 4 + 1),
        ("fedavg", {"batch_size": 0, "local_steps": 4}, {}, 4 + 1),
        ("fedcmoo", {"local_steps": 2}, {"stationarity": 2}, 4 + 4 + 2),
        ("fsmgda", {"local_epochs": 1}, {"improved": True}, 4 + 4 + 1),  # a measurement of the cohort, and one of all
    ],
)
def test_other_cohorts_need_few_new_recordings(
    method: str, settings: dict[str, Any], measured: dict[str, Any], most: int, recorded: list[Any]
) -> None:
    """Sizes differ from cohort to cohort: a recording for each would cost more than it saves."""
    algorithm = algorithms[method](**{"lr": 0.1, "batch_size": 8, **settings})
    results = [
        train(
            small_problem(), ragged(), algorithm, rounds=30, cohort=4, engine=engine, evaluate={"every": 1, **measured}
        )
        for engine in ("local", {"name": "batched", "device": "cpu"})
    ]
    assert torch.allclose(flat(results[0]), flat(results[1]), atol=1e-4)
    for a, b in zip(results[0].history, results[1].history, strict=True):
        assert a.get("stationarity") == pytest.approx(b.get("stationarity"), abs=1e-5)
        assert a.get("improved") == pytest.approx(b.get("improved"), abs=0.26)  # one of four may be on the edge
    assert 0 < len(recorded) <= most


@pytest.mark.usefixtures("own_work")
def test_arrays_of_other_names_types_or_order_are_another_recording(recorded: list[Any]) -> None:
    """A recording copies arguments into places: the same places must mean the same."""

    @work("difference", reply={"z": ""})
    def difference(client: Any, request: Request) -> Any:
        return {"z": (request["a"] - request["b"]).to(torch.float32)}

    engine = engine_of("batched", small_problem(), small_federation(), device="cpu")
    asked = [{"a": 2.0, "b": 1.0}, {"b": 1.0, "a": 2.0}, {"a": 2.0, "b": 1.0, "c": 0.0}]
    for t, numbers in enumerate(asked):
        shared = {name: torch.tensor(v) for name, v in numbers.items()}
        for dtype in (torch.float32, torch.float64):
            request = Request(
                "difference", {n: a.to(dtype) for n, a in shared.items()}, round=2 * t + (dtype.itemsize > 4)
            )
            (stack,) = engine.ask([0, 1], request)
            assert stack["z"].tolist() == [1.0, 1.0]
    assert len(recorded) == 6


@pytest.mark.usefixtures("own_work")
def test_what_only_measures_may_use_what_everybody_was_sent() -> None:
    @work("scaled", reply={"z": ""}, measures=True)
    def scaled(client: Any, request: Request) -> Any:
        return {"z": request["s"] * request["k"]}

    @work("take", reply={"z": ""})
    def take(client: Any, request: Request) -> Any:
        return {"z": request["k"]}

    for k_for in (range(6), [1, 4]):  # to all, or to some of them only
        found = []
        for name in ("local", "batched"):
            settings = {"device": "cpu"} if name == "batched" else {}
            engine = engine_of(name, small_problem(), small_federation(), **settings)
            list(engine.ask(list(k_for), Request("take", {"k": torch.tensor(2.0)}, round=1)))
            ask = Request("scaled", {"s": torch.tensor(3.0)}, round=1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of the fall-back, where some lack an array
                stacks = list(engine.ask(list(range(6)), ask))
            found.append({c: float(z) for s in stacks if not s.failed for c, z in zip(s.clients, s["z"], strict=True)})
        assert found[0] == found[1] == dict.fromkeys(k_for, 6.0)


def test_stacks_hold_a_chunk_and_come_in_order() -> None:
    problem = small_problem()
    fleet = open_door(problem, small_federation(), "batched", settings={"device": "cpu", "chunk": 4})
    fleet.begin(1)
    request = Request("evaluate", problem.initial(), options={"split": "train"})
    assert [list(s.clients) for s in fleet.ask(range(6), request)] == [[0, 1, 2, 3], [4, 5]]


def test_chunks_shrink_until_they_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run_stacked, sizes = Together._run_stacked, []

    def crowded(self: Together, group: Group, which: slice) -> Any:
        sizes.append(which.stop - which.start)
        if sizes[-1] > room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return run_stacked(self, group, which)

    monkeypatch.setattr(Together, "_run_stacked", crowded)
    problem, request = small_problem(), Request("evaluate", small_problem().initial(), options={"split": "train"})
    room = 2
    engine = engine_of("batched", problem, small_federation(), device="cpu", chunk=6)
    assert [list(s.clients) for s in engine.ask(range(6), request)] == [[0, 1], [2, 3], [4, 5]]
    assert sizes == [6, 3, 2, 2, 2]
    room = 0
    with pytest.raises(BadInput, match="One client alone does not fit"):
        list(engine.ask(range(6), request))


@pytest.mark.parametrize(("name", "settings"), METHODS)
def test_the_loop_on_a_device_mixes_nothing_with_the_host(name: str, settings: dict[str, Any]) -> None:
    """Torch's `meta` device refuses most tensors of the host, as a GPU does, and needs none."""
    some = uneven({"left": [False] + 6 * [True]})  # a client that lacks an objective
    engine: Any = engine_of("local", small_problem(), some)
    there = ClientRunner(small_problem(), some, Layers(), device=torch.device("meta"))
    here, asked = engine._runners[""], []

    def both(job: Job) -> Any:
        request = job.request
        moved = replace(request, shared=there._moved(request.shared), each=there._moved(request.each))
        arrays, _ = perform(there._client(job.client, moved), moved, None, Layers(), unchecked)
        assert {a.device.type for a in arrays.values() if isinstance(a, torch.Tensor)} == {"meta"}
        asked.append(request.work)
        return here(job)

    engine._runners[""] = both
    door = open_door(small_problem(), some, engine)
    door.begin(1)
    algorithm = algorithms[name](**{"lr": 0.1, "local_steps": 2, "batch_size": 4, **settings})
    algorithm.round(1, algorithm.init(small_problem()), door)
    assert len(asked) >= 7


def test_rows_are_taken_where_the_arrays_are() -> None:
    """A GPU refuses row numbers of the host; a fake one says so, too."""
    with FakeTensorMode():
        x, y = torch.empty(10, 3, device="cuda"), torch.empty(10, device="cuda")
        there = copy.copy(small_federation())
        object.__setattr__(there, "x", x)
        object.__setattr__(there, "targets", {"left": y})
        batch = there.take(torch.tensor([1, 4]))
    assert batch.x.shape == (2, 3)
    assert {batch.x.device.type, batch.targets["left"].device.type} == {"cuda"}


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for name in ("local", "batched", "auto"):
        asked = {"name": name, "device": "cuda"}
        with pytest.raises(BadInput, match=r"engine\.device should be 'auto' or 'cpu', as torch can see no GPU here"):
            train(small_problem(), small_federation(), algorithms["fedavg"](), engine=asked, out="r")
        assert not Path("r").exists()


def test_the_device_is_a_key_of_every_engine_of_this_machine() -> None:
    results = [
        train(
            small_problem(),
            small_federation(),
            algorithms["fedavg"](),
            rounds=1,
            engine={"name": engine, "device": "cpu"},
            out=engine,
        )
        for engine in ("local", "auto", "batched")
    ]
    for other in results[1:]:
        assert torch.allclose(flat(results[0]), flat(other), atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "fedcmoo", "fsmgda"])
def test_targets_that_a_client_does_not_hold_may_be_anything(method: str) -> None:
    """NaN is how a missing column looks; a class of -1, too."""
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    size, kind = x[:, 1].clone(), (x[:, 2] > 0).long()
    size[:50], kind[50:100] = float("nan"), -1
    targets = {"size": size, "kind": kind}
    holds = {"size": [False, True, True, True], "kind": [True, False, True, True]}
    clients = list(np.arange(200).reshape(4, 50))
    model = Headed(nn.Linear(3, 4), {"size": nn.Linear(4, 1), "kind": nn.Linear(4, 2)})
    problem = Problem(model, [Objective("size", "squared"), Objective("kind", "cross-entropy")])
    federation = Federation.from_arrays(x, targets, clients=clients, holds=holds)
    federation = replace(federation, server=None)
    one, many = (
        train(problem, federation, {"name": method, "lr": 0.05}, rounds=3, engine=engine, evaluate={"clients": True})
        for engine in ("local", "batched")
    )
    assert one.summary["failures"] == many.summary["failures"] == 0
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(many.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
