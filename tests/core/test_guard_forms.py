"""What honest replies keep to beside their lengths: losses, evaluations, buffers, moments, and compressed Jacobians."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hostile import Says, SaysAlways, asked, named
from polyfed import Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.compress import Compressor, compressors, own_key
from polyfed.core.engine import Engine, engines
from polyfed.core.facts import Facts
from polyfed.core.fleet import Stack
from polyfed.core.keys import client_key
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.core.part import Part
from polyfed.core.validate import _are_grams
from polyfed.layers import layers
from polyfed.testing import open_door
from small import small_federation, small_problem

pytestmark = pytest.mark.filterwarnings("ignore:.*runs client by client:RuntimeWarning")  # of batched
ENGINES = ["local", "wire", "batched"]
Change = Callable[[Tensor], Tensor]


def first_times(factor: float) -> Change:
    """The first row, or entry, times a factor."""

    def change(a: Tensor) -> Tensor:
        a[0] *= factor
        return a

    return change


def sgd(**options: Any) -> Request:
    how = {"lr": 0.1, "steps": 2, "batch_size": 4, **options}
    return Request("sgd", {**small_problem().initial(), "omega": torch.ones(2)}, options=how)


# losses


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (first_times(1e13), "its loss 'losses' for 'left' is"),
        (lambda a: -a, "'losses' for 'left' is -"),
    ],
)
def test_losses_that_no_other_client_has_are_dropped(engine: str, by: str, change: Change, why: str) -> None:
    total, failed = asked(Says([3], losses=change), sgd(weight=by), engine)
    assert list(failed) == [3]
    assert why in failed[3]
    assert list(total.clients) == [0, 1, 2, 4, 5]


def test_a_model_that_fits_all_but_one_has_honest_losses() -> None:
    """The losses of five clients are next to nothing, of one 9: a class that only it has."""
    fits, fits_not = Says(range(5), losses=lambda a: a * 0 + 1e-7), Says([5], losses=lambda a: a * 0 + 9.0)
    problem, federation = small_problem(), small_federation()
    engine: Engine = engines["local"]({"": Part(problem, federation)}, Layers((fits, fits_not)))
    door = open_door(problem, federation, engine)
    door.begin(1)
    assert len(door.sum(range(6), sgd()).clients) == 6
    assert door.failures == []


def test_preferences_and_afl_do_not_believe_1e13() -> None:
    """One client's losses of 1e13 made FedCMOO-Pref's weights [1, 0], and AFL's mixture that client alone."""
    for name, how in (("fedcmoo-pref", {"local_steps": 2}), ("afl", {})):
        method = algorithms[name](lr=0.1, **how)
        lies = dict.fromkeys(("losses", "loss"), lambda a: a * 1e13)
        result = train(small_problem(), small_federation(), method, rounds=2, layers=[Says([4], **lies)])
        assert named(result) == {4}
        silent = layers["faults"](silent=[4])
        honest = train(small_problem(), small_federation(), method, rounds=2, layers=[silent]).history[-1]
        assert result.history[-1]["weights"] == pytest.approx(honest["weights"], abs=1e-6)
        if name == "afl":
            assert result.history[-1]["largest_lambda"] < 0.3


def test_a_negative_loss_is_a_clients_failure_and_not_the_runs_end() -> None:
    method = algorithms["fedcmoo-pref"](lr=0.1, local_steps=2)
    result = train(small_problem(), small_federation(), method, rounds=2, layers=[Says([0], losses=lambda a: a - 1e3)])
    assert named(result) == {0}


def test_losses_of_ones_own_may_be_negative() -> None:
    problem = small_problem()
    own = [Objective(o.name, lambda output, target: output.sum(-1) - 50.0) for o in problem.objectives]
    assert asked(Says([]), sgd(), problem=Problem(problem.model, own))[1] == {}


def test_guard_off_believes_losses() -> None:
    method = algorithms["fedavg"](lr=0.1, local_steps=2)
    lies = Says([4], losses=lambda a: -a)
    assert not named(train(small_problem(), small_federation(), method, rounds=1, layers=[lies], guard="off"))


# evaluations


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: a + torch.tensor([0.0, 21.0, 0.0, 0.0]), "'values' for 'left' is"),  # more right than there are
        (lambda a: a - torch.tensor([0.0, 0.0, 0.0, 21.0]), "'values' for 'right' is -"),
        (lambda a: a * torch.tensor([-1.0, 1.0, 1.0, 1.0]), "'values' for 'left' is -"),
    ],
)
def test_nobody_is_right_more_often_than_it_has_rows(change: Change, why: str) -> None:
    request = Request("evaluate", small_problem().initial(), options={"split": "train"})
    total, failed = asked(SaysAlways([1], values=change), request)
    assert list(failed) == [1]
    assert why in failed[1]
    assert len(total.clients) == 5


def test_of_rows_kept_aside_the_client_says_how_many() -> None:
    engine: Engine = engines["local"]({"": Part(small_problem(), small_federation())}, Layers())
    expected = engine.expected(Request("evaluate", options={"split": "test"}))
    for right, fine in ((50.0, True), (51.0, False)):
        values = torch.tensor([[1e3, right, 0.0, 0.0]])
        said = {"values": values, "heard": torch.tensor([[50.0, 50.0]]), "n": torch.tensor([50.0])}
        assert bool(expected.validated(Stack([1], said))[0].clients) is fine


# q-FedAvg


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"h": lambda a: -a}, "'h' is -"),
        ({"h": lambda a: a * 0}, "per 'h' is"),
        ({"delta": lambda a: a * 1e9, "h": lambda a: a * 1e9}, "its update 'delta' is"),  # its own step, all others' 0
        ({"h": lambda a: a * 1e9}, "its statistics 'h' is"),  # no step at all
        ({"delta": lambda a: a * 1e3}, "its update 'delta' per 'h' is"),
    ],
)
def test_q_fedavgs_step_is_nobodys_own(engine: str, change: dict[str, Change], why: str) -> None:
    start = small_problem().initial()
    how = {"lr": 0.1, "steps": 2, "batch_size": 4, "q": 1.0, "L": 10.0}
    _, failed = asked(Says([2], **change), Request("q-sgd", {**start, "omega": torch.ones(2)}, options=how), engine)
    assert list(failed) == [2]
    assert why in failed[2]


def test_a_quotient_is_bounded_where_nobody_can_be_compared() -> None:
    start = small_problem().initial()
    how = {"lr": 0.1, "steps": 2, "batch_size": 4, "q": 1.0, "L": 10.0}
    request = Request("q-sgd", {**start, "omega": torch.ones(2)}, options=how)
    _, failed = asked(Says([1], h=lambda a: a * 0 + 1e-20), request, clients=3)
    assert "it should be at most 1e+15" in failed[1]


# compressors


def two_rows(longer: float) -> Tensor:
    """A Jacobian of 2 objectives and 102 parameters, one row longer than the other."""
    rows = torch.randn(2, 102, generator=torch.Generator().manual_seed(0))
    rows[0] *= longer
    return rows


@pytest.mark.parametrize("name", ["rand-svd", "top-k", "random-mask"])
@pytest.mark.parametrize("M", [1, 2, 3, 7])
def test_lengths_are_those_of_what_is_unpacked(name: str, M: int) -> None:
    compressor: Compressor = compressors[name](budget=2.0)
    keys = [(0, own_key(client_key(5, 2, client))) for client in (3, 8)]
    H = torch.randn(2, M, 50, generator=torch.Generator().manual_seed(M))
    sent = [compressor.encode(one, key) for one, key in zip(H, keys, strict=True)]
    stacked = {field: torch.stack([one[field] for one in sent]) for field in sent[0]}
    lengths = next(f.lengths for f in compressor.reply(M, 50).values() if f.lengths is not None)
    found = lengths(stacked, [3, 8], Request("jacobian", seed=5, round=2))
    torch.testing.assert_close(found, compressor.lift(stacked, keys, M, 50).norm(dim=2), rtol=1e-4, atol=1e-5)


def run_with(compress: str, engine: str = "local", **change: Change) -> list[dict[str, Any]]:
    method = algorithms["fedcmoo"](lr=0.1, compress=compress, local_steps=2)
    lies = [Says([2], **change)] if change else []
    history = train(small_problem(), small_federation(), method, rounds=1, layers=lies, engine=engine).history
    failures: list[dict[str, Any]] = history[0]["failures"]
    return failures


@pytest.mark.parametrize("engine", ["local", "batched"])
@pytest.mark.parametrize(
    ("compress", "change", "why"),
    [
        ("rand-svd", {"V": lambda a: a * 50, "U": lambda a: a * 50}, "the rows of 'V' should be orthonormal"),
        ("rand-svd", {"U": lambda a: a * 1e4}, "its gradient 'U' for"),
        ("client-grams", {"G": lambda a: -a}, "'G' should be symmetric and positive semi-definite"),
        ("client-grams", {"G": lambda a: a + torch.tensor([[0.0, 1e3], [0.0, 0.0]])}, "symmetric"),
        ("client-grams", {"G": lambda a: a * 1e9}, "its gradient 'G' for"),
        ("top-k", {"values": lambda a: a * 1e4}, "its gradient 'values' for"),
        ("random-mask", {"values": lambda a: a * 1e4}, "its gradient 'values' for"),
    ],
)
def test_a_compressed_jacobian_is_judged_by_what_it_becomes(engine: str, compress: str, change: Any, why: str) -> None:
    assert run_with(compress, engine) == []
    failures = run_with(compress, engine, **change)
    assert [f["client"] for f in failures] == [2]
    assert why in failures[0]["why"]


@pytest.mark.parametrize("compress", ["top-k", "random-mask", "rand-svd"])
def test_a_short_objective_cannot_be_made_long_behind_a_long_one(compress: str) -> None:
    """Clients' rows for one objective are 1e4 times those for the other; one of them lengthens the other's, unseen in
    the length of both together."""
    compressor: Compressor = compressors[compress](budget=4.0)
    how: dict[str, Any] = {"lr": 0.1, "steps": 1, "compress": {"name": compress, "budget": 4.0}}
    request = Request(
        "jacobian", small_problem().initial(), options={**how, "rows": 2, "columns": 102}, seed=1, round=1
    )
    engine: Engine = engines["local"]({"": Part(small_problem(), small_federation())}, Layers())
    sent: list[Mapping[str, Tensor]] = []
    for client in range(6):
        H = two_rows(1e4)
        H[1] *= 1e3 if client == 4 else 1.0
        sent.append(compressor.encode(H, (0, own_key(client_key(1, 1, client)))))
    arrays = {name: torch.stack([one[name] for one in sent]) for name in sent[0]}
    told = {"losses": torch.ones(6, 2), "heard": torch.ones(6, 2)}
    stack, lengths = engine.expected(request).validated(Stack(list(range(6)), {**arrays, **told}))
    assert len(stack.clients) == 6
    assert list(engine.expected(request).guard().compare(range(6), lengths)) == [4]


def test_grams_are_told_from_other_matrices() -> None:
    rng = np.random.default_rng(0)
    H = rng.normal(size=(5, 4, 3)) * np.array([1e-6, 1.0, 1e6, 0.0])[:, None]
    G = H @ H.transpose(0, 2, 1)
    assert _are_grams(G).all()
    worse = G.copy()
    worse[0, 0, 0] *= -1
    worse[1, 0, 1] *= 3
    worse[2, 3, 0] = worse[2, 0, 3] = 1.0  # beside a gradient of length 0
    worse[3, 0, 2] = worse[3, 2, 0] = 2 * np.sqrt(G[3, 0, 0] * G[3, 2, 2])
    assert _are_grams(worse).tolist() == [False] * 4 + [True]
    no_angles = np.eye(3)[None] * 1.9 - 0.9  # each pair may be; the three together may not
    assert not _are_grams(no_angles).any()


# buffers


def normalised() -> Problem:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return Problem(body, [Objective("left", "cross-entropy")])


def buffers_request(problem: Problem, **options: Any) -> Request:
    how = {"lr": 0.1, "steps": 2, "batch_size": 10, **options}
    return Request("sgd", {**problem.initial(), "omega": torch.ones(1)}, options=how)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("by", ["uniform", "size"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: a + 1e4, "its change of the buffer '1.running_mean' is"),
        (lambda a: torch.cat([a[:8], a[8:] * 0 - 0.5]), "the variances in 'buffers' is -0.5"),
        (lambda a: torch.cat([a[:8], a[8:] + 1e3]), "its change of the buffer '1.running_var' is"),
    ],
)
def test_buffers_stay_near_the_servers(engine: str, by: str, change: Change, why: str) -> None:
    problem = normalised()
    total, failed = asked(Says([3], buffers=change), buffers_request(problem, weight=by), engine, problem)
    assert list(failed) == [3]
    assert why.replace("-0.5", f"{-0.5 * (20 if by == 'size' else 1):g}") in failed[3]
    assert float((total["buffers"] / total["weight"]).abs().max()) < 10


def test_buffers_that_a_second_exchange_does_not_send_are_remembered() -> None:
    """FedCMOO sends its model with the Jacobians' exchange alone."""

    def far(a: Tensor) -> Tensor:
        return a + 100.0

    method = algorithms["fedcmoo"](lr=0.1, local_steps=2, batch_size=10)
    result = train(normalised(), small_federation(), method, rounds=2, layers=[Says([1], buffers=far)])
    assert named(result) == {1}
    assert not named(train(normalised(), small_federation(), method, rounds=4))


# MOCHA's moments


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"squares": lambda a: -a, "sum": lambda a: a * 0}, "'squares' is -"),
        ({"sum": lambda a: a + 1e3}, "'sum' should be at most the root"),
        ({"n": lambda a: a - 1}, "its weight 'n' is 19; it should be 20"),
        ({"squares": lambda a: a * 1e9}, "its statistics 'squares' per 'n' is"),
    ],
)
def test_moments_are_those_of_some_rows(change: dict[str, Change], why: str) -> None:
    total, failed = asked(Says([5], **change), Request("moments"), problem=linear())
    assert list(failed) == [5]
    assert why in failed[5]
    assert float(total["n"]) == 100


def linear() -> Problem:
    return Problem(nn.Linear(5, 1), [Objective("left", "binary")])


def test_facts_follow_from_the_problem() -> None:
    facts = Facts.of(normalised())
    assert facts.buffers == ("1.running_mean", "1.running_var")
    assert facts.variances.tolist() == list(range(8, 16))
    assert facts.most.tolist() == [np.inf, 1.0]
    assert facts.least.tolist() == [0.0, 0.0]
