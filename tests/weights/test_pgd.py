"""FedCMOO's projected gradient steps."""

from __future__ import annotations

import numpy as np
import pytest
from gram_families import golden, gram

from polyfed.core.errors import BadInput
from polyfed.weights import min_norm, pgd, weigh, weightings


def test_golden() -> None:
    for case in golden("find_weights_pgd.json"):
        w = pgd(case["G"], case["w0"], steps=case["n_iter"], step=case["lr"])
        np.testing.assert_allclose(w, case["w"], atol=1e-5)


def test_many_steps_reach_min_norm() -> None:
    G = gram("generic", 0, 4)
    np.testing.assert_allclose(pgd(G, [0.25] * 4, steps=5000, step=0.1), min_norm(G), atol=1e-6)


def test_two_rounds_of_500_steps_are_one_of_1000() -> None:
    G, half = gram("generic", 1, 4), weightings["pgd"](steps=500)
    _, state = weigh(half, G, half.init(4))
    again, _ = weigh(half, G, state)
    assert again.tolist() == pgd(G, [0.25] * 4).tolist()


def test_a_zero_gram_and_a_single_objective_stay() -> None:
    assert pgd(np.zeros((2, 2)), [0.25, 0.75]).tolist() == [0.25, 0.75]
    assert pgd([[5.0]], [1.0]).tolist() == [1.0]


@pytest.mark.parametrize("settings", [{"steps": 0}, {"step": 0.0}, {"step": float("nan")}])
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="should be positive"):
        pgd(np.eye(2), [0.5, 0.5], **settings)  # type: ignore[arg-type]
