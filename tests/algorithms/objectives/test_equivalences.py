"""Methods that must equal each other, to the last bit or to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from polyfed import Federation, Problem, train
from polyfed.algorithms import algorithms
from polyfed.algorithms.objectives.fedcmoo import gram_errors
from polyfed.weights import min_norm
from small import small_federation, small_problem

LOCAL = {"lr": 0.2, "local_steps": 3, "batch_size": 8}


def run(
    name: str, *, federation: Federation | None = None, objectives: int = 2, rounds: int = 3, **settings: Any
) -> Any:
    engine = settings.pop("engine", "local")
    cohort = settings.pop("cohort", 4)
    algorithm = algorithms[name](**{**LOCAL, **settings})
    return train(
        small_problem(objectives=objectives), federation or small_federation(), algorithm,
        rounds=rounds, cohort=cohort, engine=engine,
    )  # fmt: skip


def flat(result: Any) -> torch.Tensor:
    return torch.cat([v.reshape(-1) for v in result.model.state_dict().values()])


NEURAL: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}), ("fedprox", {}), ("fedavg-n", {}), ("fedmgda", {}), ("fedmgda+", {}), ("mgda-prox", {}),
    ("q-fedavg", {}), ("fmgda", {}), ("fsmgda", {}), ("fsmgda", {"upload": "combined", "width": 16}),
    ("fedcmoo", {"width": 16}), ("fedcmoo", {"width": 16, "exchanges": 1, "ema": 0.8}),
    ("fedcmoo", {"compress": "exact"}), ("fedcmoo", {"compress": "top-k", "ways": 2}),
    ("fedcmoo", {"compress": "rand-svd", "budget": 2.0}), ("fedcmoo", {"compress": "random-mask"}),
    ("fedcmoo", {"compress": "client-grams", "weighting": "pgd"}),
    ("fedcmoo", {"gram": "two-sets", "width": 16}),
    ("fedcmoo-pref", {"width": 16, "preference": {"left": 1, "right": 2}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), NEURAL)
def test_every_method_gives_the_same_model_on_every_engine(name: str, settings: dict[str, Any]) -> None:
    holds = {"left": [True, True, False, True, True, True]}
    hashes = {
        run(name, engine=engine, federation=small_federation(holds=holds), **settings).summary["model_sha256"]
        for engine in ("local", "wire", {"name": "local", "workers": 2})
    }
    assert len(hashes) == 1


def test_afl_gives_the_same_model_on_every_engine() -> None:
    results = [
        train(small_problem(), small_federation(), algorithms["afl"](lr=0.5), rounds=3, cohort=4, engine=engine)
        for engine in ("local", "wire")
    ]
    assert results[0].summary["model_sha256"] == results[1].summary["model_sha256"]


def test_no_box_and_no_normalising_is_fedavg_to_the_last_bit() -> None:
    assert run("fedmgda", eps=0.0).summary["model_sha256"] == run("fedavg").summary["model_sha256"]
    plain = run("fedmgda+", eps=0.0, normalise=False).summary["model_sha256"]
    assert plain == run("fedavg").summary["model_sha256"]
    assert run("fedprox", mu=0.0).summary["model_sha256"] == run("fedavg").summary["model_sha256"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fmgda", {"batch_size": 8}), ("fsmgda", {}), ("fsmgda", {"upload": "combined", "width": 16}),
        ("fedcmoo", {"width": 16}), ("fedcmoo", {"width": 16, "exchanges": 1}), ("fedcmoo-pref", {"width": 16}),
        ("q-fedavg", {"q": 0.0}),
    ],
)  # fmt: skip
def test_one_objective_is_fedavg(name: str, settings: dict[str, Any]) -> None:
    one, plain = run(name, objectives=1, **settings), run("fedavg", objectives=1)
    assert torch.allclose(flat(one), flat(plain), atol=1e-6)


def test_q_zero_is_fedavg_for_any_lipschitz_estimate() -> None:
    assert torch.allclose(flat(run("q-fedavg", q=0.0, L=7.0)), flat(run("fedavg")), atol=1e-6)


def test_one_client_one_full_step_is_centralised_mgd() -> None:
    problem = small_problem()
    federation = small_federation(clients=1, rows=60)
    by_hand = problem.initial()["x"].clone()
    x, targets = federation.take(torch.from_numpy(federation.rows("train", 0)))[:2]
    for _ in range(4):
        model = small_problem().model
        model.load_state_dict(problem.state_dict(by_hand, torch.zeros(0)))
        out = model(x)
        rows = []
        for name in problem.names:
            model.zero_grad()
            loss = torch.nn.functional.cross_entropy(out[name], targets[name])
            torch.autograd.backward(loss, retain_graph=True)
            rows.append(
                torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()])
            )
        J = torch.stack(rows)
        shared = J[:, problem.parts["shared"]]
        lam = torch.from_numpy(min_norm((shared @ shared.T).double().numpy())).float()
        by_hand = by_hand - 0.2 * lam @ J
    one_step = {"local_steps": 1, "batch_size": 0, "rounds": 4, "cohort": 1}
    for name in ("fmgda", "centralised"):
        result = run(name, federation=federation, **one_step)
        assert torch.allclose(problem.state_dict(by_hand, torch.zeros(0))["body.0.weight"],
                              result.model.state_dict()["body.0.weight"], atol=1e-6), name  # fmt: skip
    result = run("fedcmoo", federation=federation, compress="exact", **one_step)
    assert torch.allclose(flat(result), flat(run("fmgda", federation=federation, **one_step)), atol=1e-6)


def test_centralised_pools_everybodys_rows() -> None:
    pooled = run("centralised", local_steps=1, batch_size=0, cohort="all")
    together = run("fmgda", local_steps=1, batch_size=0, cohort="all", weighting_by="size")
    assert torch.allclose(flat(pooled), flat(together), atol=1e-6)
    assert pooled.history[0]["cohort"] == [0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_combined_uploads_equal_full_ones_under_any_matrix_and_cohort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.random((6, 3)) < 0.6
    A[np.arange(6), rng.integers(0, 3, 6)] = True
    holds = {name: A[:, s].tolist() for s, name in enumerate(("left", "right", "middle"))}
    federation = small_federation(holds=holds)
    for by in ("uniform", "size"):
        full = run("fsmgda", federation=federation, objectives=3, weighting_by=by)
        combined = run("fsmgda", federation=federation, objectives=3, weighting_by=by, upload="combined", width=0)
        assert torch.allclose(flat(full), flat(combined), atol=1e-6)


def test_a_wide_sketch_approaches_the_exact_gram() -> None:
    exact = run("fedcmoo", compress="exact", gram_error=True, rounds=1)
    assert exact.history[0]["gram_error"] < 1e-6
    errors = [
        np.mean([run("fedcmoo", width=w, gram_error=True, rounds=8).history[t]["gram_error"] for t in range(8)])
        for w in (4, 40)
    ]
    assert errors[1] < errors[0]


def test_an_estimate_is_judged_at_the_best_scale_too() -> None:
    exact = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    assert gram_errors(3 * exact, exact) == pytest.approx({"gram_error": 2, "gram_error_scaled": 0}, abs=1e-12)
    assert gram_errors(0 * exact, exact) == {"gram_error": 1, "gram_error_scaled": 1}
    line = run("fedcmoo", compress="client-grams", gram_error=True, rounds=1).history[0]
    assert 0 < line["gram_error_scaled"] < line["gram_error"]


@pytest.mark.parametrize("by", ["uniform", "size"])
def test_two_way_with_nothing_lost_is_exact(by: str) -> None:
    holds = {"left": [True, True, False, True, True, True]}
    for compress, budget in (("exact", 1.0), ("top-k", 4.0), ("rand-svd", 30.0)):
        result = run(
            "fedcmoo", compress=compress, budget=budget, ways=2, gram_error=True, rounds=2, weighting_by=by,
            federation=small_federation(holds=holds),
        )  # fmt: skip
        assert result.history[-1]["gram_error"] < 1e-5, compress


def test_two_way_is_closer_than_one_way() -> None:
    error = {
        ways: np.mean([
            line["gram_error"]
            for line in run("fedcmoo", compress="rand-svd", budget=1.0, ways=ways, gram_error=True, rounds=8).history
        ])
        for ways in (1, 2)
    }  # fmt: skip
    assert error[2] < error[1]


def test_one_exchange_costs_half() -> None:
    one, two = run("fedcmoo", width=8, exchanges=1), run("fedcmoo", width=8)
    full, combined = run("fsmgda"), run("fsmgda", upload="combined", width=8)
    assert one.summary["bytes_up"] < two.summary["bytes_up"] < full.summary["bytes_up"]
    assert combined.summary["bytes_up"] < 0.75 * full.summary["bytes_up"]
    assert len(one.history[0]["cohort"]) == 4


def test_an_objective_nobody_in_the_cohort_holds_is_left_out_of_g() -> None:
    holds = {"right": [False] * 6}
    for name, settings in NEURAL[7:]:
        if settings.get("preference"):
            continue
        result = run(name, federation=small_federation(holds=holds), **settings)
        assert result.history[-1]["weights"]["right"] == 0, (name, settings)
        assert result.history[-1]["weights"]["left"] == pytest.approx(1.0), (name, settings)


def test_clients_with_disjoint_objectives_train() -> None:
    holds = {"left": [True, False] * 3, "right": [False, True] * 3}
    for name, settings in (("fsmgda", {}), ("fedcmoo", {"width": 16}), ("fedcmoo", {"width": 16, "exchanges": 1})):
        result = run(name, federation=small_federation(holds=holds), rounds=25, cohort=6, lr=0.5, **settings)
        losses = [sum(line["losses"].values()) for line in result.history]
        assert losses[-1] < 0.85 * losses[0], name


def test_weightings_of_torchjd_work_over_clients() -> None:
    pytest.importorskip("torchjd")
    for weighting in ("upgrad", "dualproj", "imtl-g", "aligned-mtl", "cagrad", "pcgrad"):
        result = run("fedcmoo", compress="exact", weighting=weighting, rounds=2)
        assert np.isfinite(list(result.history[-1]["weights"].values())).all()
    assert run("fsmgda", weighting="fixed", weighting_options={"weights": [0.3, 0.7]}).history[0]["weights"] == {
        "left": pytest.approx(0.3), "right": pytest.approx(0.7),
    }  # fmt: skip


def test_a_problem_without_heads() -> None:
    from torch import nn

    from polyfed import Objective

    torch.manual_seed(0)
    problem = Problem(nn.Linear(5, 3), [Objective("left", "cross-entropy"), Objective("right", "cross-entropy")])
    result = train(problem, small_federation(), algorithms["fedcmoo"](width=8), rounds=2)
    assert sum(result.history[-1]["weights"].values()) == pytest.approx(1.0)
