"""TorchJD's weightings through our adapter."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from gram_families import gram, grams, lengths
from hypothesis import given, settings
from torchjd import aggregation

from polyfed.core.errors import BadInput
from polyfed.weights import WeightingState, project_dual_cone, psd, weigh, weightings
from polyfed.weights.gram import Array

G = gram("indefinite", 0, 4)
J = np.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])


@settings(max_examples=150, deadline=None)
@given(grams(sizes=(1, 8)))
def test_dual_cone_kkt(G: Array) -> None:
    """`v >= u`, `G v >= 0`, and `(v - u)^T G v = 0`."""
    P, norms = psd(G), lengths(psd(G))
    u = np.eye(len(G))[0]
    v = project_dual_cone(G, u)
    size = max(v @ norms, 1e-12 * norms.max())
    assert (v >= u).all()
    assert (P @ v >= -1e-7 * norms * size).all()
    assert (v - u) @ P @ v <= 1e-7 * size**2


def test_upgrad_as_torchjd_documents_it() -> None:
    """Their value, but for the ridge of 1e-4 that their solver needs and ours does not."""
    w, _ = weightings["upgrad"]()(J @ J.T, {}, 0)
    np.testing.assert_allclose(w, [1.1109, 0.7894], rtol=2e-3)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("pcgrad", aggregation.PCGradWeighting()),
        ("imtl-g", aggregation.IMTLGWeighting()),
        ("aligned-mtl", aggregation.AlignedMTLWeighting()),
        ("mgda", aggregation.MGDAWeighting()),
        ("krum", aggregation.KrumWeighting(n_byzantine=1)),
        ("random", aggregation.RandomWeighting()),
        ("fairgrad", aggregation.FairGradWeighting(alpha=1.0)),
    ],
)
def test_the_adapter_changes_nothing(name: str, theirs: aggregation.Weighting[Any]) -> None:
    torch.manual_seed(7)
    expected = theirs(torch.from_numpy(psd(G)))
    w, _ = weightings[name]()(G, {}, 7)
    assert w.tolist() == expected.tolist()


def test_memory_is_the_state_and_chance_is_the_key() -> None:
    """Three rounds of GradVac, each from nothing but state and key, are three calls of one object that remembers."""
    rounds = [gram("generic", seed, 4) for seed in range(3)]
    theirs, ours = aggregation.GradVacWeighting(), weightings["gradvac"]()
    state: WeightingState = {}
    for key, G in enumerate(rounds):
        torch.manual_seed(key)
        expected = theirs(torch.from_numpy(psd(G)))
        w, state = weigh(ours, G, state, key)
        assert w.tolist() == expected.tolist()


def test_the_callers_own_chance_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    drawn = [weightings["random"]()(G, {}, key)[0].tolist() for key in (1, 1, 2, 2**64 - 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert (torch.random.get_rng_state() == before).all()


def test_what_torchjd_refuses_is_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"TorchJD refused this weighting: .* at least 4 rows"):
        weightings["krum"]()(np.eye(2), {}, 0)
    with pytest.raises(BadInput, match="TorchJD refused this weighting: n_byzantine must be non-negative"):
        weightings["krum"](n_byzantine=-1)


def test_without_torchjd_a_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(BadInput, match=r"not installed; run: pip install 'polyfed\[torchjd\]'"):
        weightings["upgrad"]()
    assert weightings.help("upgrad").startswith("UPGrad")
