"""FedMGDA+ and the fair baselines: nobody is hurt, and who scales a loss gains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from polyfed import Layer, train
from polyfed.algorithms import algorithms
from polyfed.core.errors import BadInput
from polyfed.core.messages import Request
from polyfed.layers.attacks import Misreport
from polyfed.metrics import delta_m, hypervolume, improved_share, nrmse, spread
from polyfed.testing import open_door
from small import small_federation, small_problem, vector

ONE_STEP: dict[str, Any] = {"lr": 0.1, "local_steps": 1, "batch_size": 0}


def first_step(name: str, layers: Sequence[Layer] = (), **settings: Any) -> torch.Tensor:
    """x_0 - x_1."""
    problem = small_problem()
    start = problem.initial()["x"]
    algorithm = algorithms[name](**settings)
    # the guard would leave out who misreports
    return start - vector(train(problem, small_federation(), algorithm, rounds=1, layers=layers, guard="off"))


def updates() -> torch.Tensor:
    problem = small_problem()
    fleet = open_door(problem, small_federation())
    fleet.begin(1)
    request = Request(
        "sgd", {**problem.initial(), "omega": torch.tensor([0.5, 0.5])},
        options={"lr": 0.1, "steps": 1, "batch_size": 0, "weight": "uniform"},
    )  # fmt: skip
    return torch.cat([s["delta"] for s in fleet.ask(range(6), request)])


def test_nobody_is_hurt_without_a_box() -> None:
    """<g_i, d> >= |d|^2, and >= |g_i| |d|^2 when normalised."""
    g = updates()
    d = first_step("fedmgda", **ONE_STEP)
    assert (g @ d >= d.square().sum() * (1 - 1e-4)).all()
    d = first_step("fedmgda+", eps=1.0, **ONE_STEP)
    assert (g @ d >= g.norm(dim=1) * d.square().sum() * (1 - 1e-4)).all()


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.5])
def test_a_clients_pull_is_bounded_by_the_box(eps: float) -> None:
    result = train(small_problem(), small_federation(), algorithms["fedmgda+"](eps=eps, **ONE_STEP), rounds=1)
    lam = np.array(list(result.history[0]["client_weights"].values()))
    assert lam.sum() == pytest.approx(1.0)
    assert (np.abs(lam - 1 / 6) <= eps + 1e-9).all()


@pytest.mark.parametrize("attack", [{"factor": 10.0}, {"bias": 1e6}])
def test_misreporting_moves_fedmgda_plus_no_more_than_honesty(attack: dict[str, float]) -> None:
    attackers = [Misreport(clients=[2], **attack)]
    honest, attacked = first_step("fedmgda+", **ONE_STEP), first_step("fedmgda+", attackers, **ONE_STEP)
    assert torch.allclose(honest, attacked, atol=1e-6)
    for name, settings in (("q-fedavg", {**ONE_STEP, "q": 1.0}), ("afl", {"lr": 0.1})):
        rounds = 2  # AFL's weights answer one round later
        moved = []
        for layers in ([], attackers):
            algorithm = algorithms[name](**settings)
            moved.append(vector(train(small_problem(), small_federation(), algorithm, rounds=rounds, layers=layers)))
        assert (moved[0] - moved[1]).norm() > 1e-3, name


def test_several_local_steps_leave_the_direction_nearly_alone() -> None:
    attackers = [Misreport(clients=[2], factor=10.0)]
    settings: dict[str, Any] = {"lr": 0.02, "local_steps": 10, "batch_size": 0, "eps": 0.1}
    honest, attacked = first_step("fedmgda+", **settings), first_step("fedmgda+", attackers, **settings)
    assert torch.nn.functional.cosine_similarity(honest, attacked, dim=0) > 0.95
    plain = torch.nn.functional.cosine_similarity(
        first_step("fedavg", lr=0.02, local_steps=10, batch_size=0),
        first_step("fedavg", attackers, lr=0.02, local_steps=10, batch_size=0), dim=0,
    )  # fmt: skip
    honest = torch.nn.functional.cosine_similarity(honest, attacked, dim=0)
    assert plain < honest


def test_normalised_updates_have_length_one() -> None:
    g = torch.nn.functional.normalize(updates())
    assert torch.allclose(first_step("fedavg-n", **ONE_STEP), g.mean(0), atol=1e-6)


def test_the_share_of_improved_participants_tends_to_all() -> None:
    algorithm = algorithms["fedmgda"](
        lr=0.5, local_steps=1, batch_size=0, server_lr={"start": 1.0, "decay": 0.9, "every": 5}
    )
    result = train(small_problem(), small_federation(), algorithm, rounds=40, evaluate={"improved": True})
    assert np.mean([line["improved"] for line in result.history[-10:]]) == 1.0


def test_q_fedavg_by_hand() -> None:
    problem = small_problem()
    federation = small_federation()
    start, q, lr = problem.initial()["x"], 2.0, 0.1
    deltas, hs = torch.zeros_like(start), 0.0
    for c in range(6):
        batch = federation.take(torch.from_numpy(federation.rows("train", c)))
        model = small_problem().model
        out = model(batch.x)
        losses = [torch.nn.functional.cross_entropy(out[n], batch.targets[n]) for n in problem.names]
        loss = torch.stack(losses).sum() / 2
        g = torch.cat([v.reshape(-1) for v in torch.autograd.grad(loss, list(model.parameters()))])
        F, Dw = float(loss.detach()) + 1e-10, g  # L (x - x_i) = (1 / lr) lr g
        deltas += F**q * Dw
        hs += q * F ** (q - 1) * float(Dw.square().sum()) + F**q / lr
    moved = first_step("q-fedavg", q=q, lr=lr, local_steps=1, batch_size=0)
    assert torch.allclose(moved, deltas / hs, atol=1e-6)


def test_afl_finds_the_hard_client() -> None:
    federation = small_federation()
    federation.targets["left"][torch.from_numpy(federation.rows("train", 3))] = 0  # labels of no use
    result = train(small_problem(), federation, algorithms["afl"](lr=0.2, lambda_lr=0.1), rounds=40)
    assert result.history[-1]["largest_lambda"] > 1.4 / 6


def test_metrics() -> None:
    assert delta_m({"a": 1.1, "b": 4.0}, {"a": 1.0, "b": 5.0}) == pytest.approx(-0.05)
    with pytest.raises(BadInput, match="same objectives"):
        delta_m({"a": 1.0}, {"b": 1.0})
    assert improved_share([1, 2, 3], [1, 3, 2]) == pytest.approx(2 / 3)
    assert spread(range(100))["worst_10"] == 4.5
    assert spread(range(100), high_is_bad=True)["worst_5"] == 97
    assert nrmse([[3.0, 4.0]], [[3.0, 4.5]]) == pytest.approx(0.1)


def test_hypervolume_of_a_staircase() -> None:
    pytest.importorskip("moocore")
    assert hypervolume([[1, 3], [2, 2], [3, 1]], [4, 4]) == pytest.approx(6.0)
    with pytest.raises(BadInput, match="one value per objective"):
        hypervolume([[1, 2, 3]], [4, 4])


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("fedmgda+", {"eps": 1.5}, "less than or equal to 1"),
        ("fedcmoo", {"exchanges": 1, "ways": 2}, "use exchanges = 2"),
        ("fedcmoo", {"gram": "two-sets", "compress": "top-k"}, "unbiased compressor"),
    ],
)
def test_settings_that_cannot_be(name: str, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        algorithms[name](**settings)


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("fedcmoo-pref", {"preference": {"left": -1.0, "right": 1.0}}, "non-negative numbers, not all zero"),
        ("fedcmoo-pref", {"preference": {"left": 0.0}}, "not all zero"),
        ("fedcmoo-pref", {"preference": {"lefft": 1.0}}, "Did you mean 'left'"),
        ("fedcmoo", {"width": 10**6}, "at most the 48 parameters it sketches"),
        ("fsmgda", {"upload": "combined", "width": 10**6}, "at most the 48 parameters"),
        ("fedcmoo", {"weighting": "upgradd"}, "Did you mean 'upgrad'"),
        ("fedcmoo", {"compress": "scetch"}, "Did you mean 'sketch'"),
        ("fedcmoo", {"weighting_options": {"stepps": 3}, "weighting": "pgd"}, "Unknown key"),
    ],
)
def test_what_only_the_problem_can_refuse(name: str, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        train(small_problem(), small_federation(), algorithms[name](**settings), rounds=1, out="never")
