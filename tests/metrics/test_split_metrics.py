"""Metrics of a whole split agree with scikit-learn and NumPy, added up over padded batches, alone and under vmap."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    r2_score,
    roc_auc_score,
)
from torch import Tensor

from polyfed import BadInput, SplitMetric
from polyfed.metrics import (
    auc,
    average_precision,
    balanced_accuracy,
    calibration_error,
    demographic_parity_gap,
    equalised_odds_gap,
    f1,
    quantile,
    r2,
)
from polyfed.metrics.scores import Bins, log_odds

SIZES = (1, 40, 7, 300, 52)  # of the batches
N = sum(SIZES)


def batches(*tensors: Tensor) -> list[tuple[list[Tensor], Tensor]]:
    """Unequal batches, all padded to one length with rows that would change every figure."""
    cut = [torch.split(t, list(SIZES)) for t in tensors]
    longest = max(SIZES)
    made = []
    for parts in zip(*cut, strict=True):
        n = len(parts[0])
        full = [torch.cat([p, torch.full((longest - n, *p.shape[1:]), 1).to(p.dtype)]) for p in parts]
        made.append((full, (torch.arange(longest) < n).double()))
    return made


def added(metric: SplitMetric, output: Tensor, target: Tensor, *columns: Tensor) -> np.ndarray[Any, Any]:
    """The sum of a metric's statistics over batches; the same under vmap."""
    some = batches(output, target, *columns)
    one_by_one = [metric.update(full[0], full[1], mask, *full[2:]) for full, mask in some]
    together = torch.func.vmap(metric.update)(
        torch.stack([full[0] for full, _ in some]), torch.stack([full[1] for full, _ in some]),
        torch.stack([mask for _, mask in some]), *(torch.stack([full[2 + i] for full, _ in some])
                                                   for i in range(len(columns))),
    )  # fmt: skip
    assert torch.allclose(torch.stack(one_by_one).double(), together.double(), rtol=1e-12)
    assert together.shape[1:] == metric.shape
    if metric.counts:
        assert not together.is_floating_point()
        assert 0 <= int(together.min()) <= int(together.max()) <= N
    return together.sum(0).double().numpy()


rng = np.random.default_rng(0)
z = torch.from_numpy(rng.normal(size=N) * 2)
y = torch.from_numpy((z.numpy() + rng.normal(size=N) * 2 > 0.5).astype(float))
logits = torch.from_numpy(rng.normal(size=(N, 4)) * 3)
kind = torch.from_numpy((logits.numpy() + rng.normal(size=(N, 4)) * 3).argmax(1))
value = torch.from_numpy(rng.normal(size=N) + 100)
guess = value + torch.from_numpy(rng.normal(size=N) * 0.3)
group = torch.from_numpy(rng.integers(-1, 3, N))  # -1 is of no group
Z, Y, P, K, G = z.numpy(), y.numpy(), logits.softmax(1).numpy(), kind.numpy(), group.numpy()


def top_label_error(bins: int) -> float:
    """Guo et al.'s expected calibration error, bin by bin."""
    confidence, right = P.max(1), P.argmax(1) == K
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    mine = [place == b for b in range(bins)]
    return float(sum(some.sum() / N * abs(confidence[some].mean() - right[some].mean()) for some in mine if some.any()))


def binary_error(bins: int) -> float:
    p = 1 / (1 + np.exp(-Z))
    true, said = calibration_curve(Y, p, n_bins=bins)
    counts = np.histogram(p, np.linspace(0, 1, bins + 1))[0]
    return float(np.abs(true - said) @ counts[counts > 0] / N)


def rates(rows: Callable[[int], Any], groups: int = 3) -> float:
    shares = [(Z[rows(g)] > 0).mean() for g in range(groups)]
    return float(max(shares) - min(shares))


EXACT: dict[str, tuple[SplitMetric, Sequence[Tensor], Callable[[], float]]] = {
    "f1": (f1(), (z, y), lambda: f1_score(Y, Z > 0)),
    "f1 at a threshold": (f1(threshold=1.0), (z, y), lambda: f1_score(Y, Z > 1)),
    "f1, macro": (f1(4), (logits, kind), lambda: f1_score(K, P.argmax(1), average="macro")),
    "f1, a class nobody has": (
        f1(5), (torch.cat([logits, logits[:, :1] - 1], 1), kind), lambda: f1_score(K, P.argmax(1), average="macro"),
    ),
    "balanced accuracy": (balanced_accuracy(), (z, y), lambda: balanced_accuracy_score(Y, Z > 0)),
    "balanced accuracy of two logits": (
        balanced_accuracy(), (torch.stack([z * 0, z], 1), y.long()), lambda: balanced_accuracy_score(Y, Z > 0),
    ),
    "balanced accuracy of four": (
        balanced_accuracy(4), (logits, kind), lambda: balanced_accuracy_score(K, P.argmax(1)),
    ),
    "r2": (r2(), (guess, value), lambda: r2_score(value, guess)),
    "r2 of two outputs": (
        r2(2), (torch.stack([guess, z], 1), torch.stack([value, y], 1)),
        lambda: r2_score(np.stack([value, Y], 1), np.stack([guess, Z], 1)),
    ),
    "calibration": (calibration_error(bins=10), (z, y), lambda: binary_error(10)),
    "calibration of four": (calibration_error(4, bins=12), (logits, kind), lambda: top_label_error(12)),
    "parity": (demographic_parity_gap("sex", 3), (z, y, group), lambda: rates(lambda g: g == G)),
    "odds": (
        equalised_odds_gap("sex", 3), (z, y, group),
        lambda: max(rates(lambda g: (g == G) & (Y == 0)), rates(lambda g: (g == G) & (Y == 1))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_exact_metrics_are_those_of_the_pooled_rows(name: str) -> None:
    metric, data, oracle = EXACT[name]
    assert float(metric.compute(added(metric, *data))) == pytest.approx(oracle(), rel=1e-9)


ROUNDED: dict[str, tuple[SplitMetric, Sequence[Tensor], Callable[[], float], float]] = {
    "auc": (auc(), (z, y), lambda: roc_auc_score(Y, Z), 1e-3),
    "auc of two logits": (auc(), (torch.stack([z, z * 2], 1), y), lambda: roc_auc_score(Y, Z), 1e-3),
    "auc, one against the rest": (auc(4), (logits, kind), lambda: roc_auc_score(K, P, multi_class="ovr"), 1e-3),
    "auc with few bins": (auc(bins=16), (z, y), lambda: roc_auc_score(Y, Z), 0.05),
    "auc of scores that are nearly the same": (auc(), (z * 1e-3, y), lambda: roc_auc_score(Y, Z), 0.2),
    "auc of enormous scores": (auc(), (z * 1e6, y), lambda: roc_auc_score(Y, Z), 0.2),
    "auc of ties": (auc(), (z.round(), y), lambda: roc_auc_score(Y, Z.round()), 1e-9),
    "average precision": (average_precision(), (z, y), lambda: average_precision_score(Y, Z), 1e-2),
    "average precision of ties": (
        average_precision(), (z.round(), y), lambda: average_precision_score(Y, Z.round()), 1e-9,
    ),
    "average precision, one against the rest": (
        average_precision(4), (logits, kind), lambda: average_precision_score(np.eye(4)[K], P), 1e-2,
    ),
    "median error": (quantile(0.5), (guess, value), lambda: np.median(np.abs((guess - value).numpy())), 3e-3),
    "largest error": (quantile(1.0), (guess, value), lambda: np.max(np.abs((guess - value).numpy())), 5e-3),
    "a tenth of the outputs": (
        quantile(0.1, "output", scale=2.0), (z, y), lambda: np.quantile(Z, 0.1), 2e-2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_binned_metrics_are_as_near_as_their_bounds_say(name: str) -> None:
    metric, data, oracle, near = ROUNDED[name]
    statistics = added(metric, *data)
    assert metric.bounds is not None
    low, high = metric.bounds(statistics)
    found, wanted = float(metric.compute(statistics)), float(oracle())
    assert low - 1e-12 <= found <= high + 1e-12
    assert low - 1e-12 <= wanted <= high + 1e-12
    assert found == pytest.approx(wanted, abs=near)


def test_the_bound_of_an_auc_is_half_the_share_of_pairs_within_a_bin() -> None:
    statistics = added(auc(bins=32), z, y)
    place = Bins(32, 4.0).place(z).numpy()
    pairs = sum((place[Y == 1] == b).mean() * (place[Y == 0] == b).mean() for b in range(32))
    bounds = auc(bins=32).bounds
    assert bounds is not None
    low, high = bounds(statistics)
    assert high - low == pytest.approx(pairs)


@pytest.mark.parametrize(
    "metric", [auc(bins=4), average_precision(bins=4), auc(3, bins=4), average_precision(3, bins=4)]
)
def test_a_value_lies_within_its_own_bounds_and_those_within_0_and_1(metric: SplitMetric) -> None:
    rng = np.random.default_rng(0)
    assert metric.bounds is not None
    for most in (2, 5, 10**9):
        for _ in range(100):
            counts = rng.integers(0, most, metric.shape).astype(float)
            counts[:, :, 0] += 1
            low, high = metric.bounds(counts)
            assert 0 <= low <= float(metric.compute(counts)) <= high <= 1


def test_bins_are_a_fixed_monotone_map_that_no_number_escapes() -> None:
    for bins in (Bins(64, 4.0), Bins(64, 0.5, signed=False)):
        inner = bins.edge(np.arange(64.0) + 0.5)
        assert bins.place(torch.from_numpy(inner)).tolist() == list(range(64))
    extremes = torch.tensor([-torch.inf, -1e300, torch.nan, 1e300, torch.inf], dtype=torch.float64)
    assert Bins(64, 4.0).place(extremes).tolist() == [0, 0, 32, 63, 63]
    assert (np.abs(Bins(64, 4.0).edge(np.arange(16.0, 49.0))) <= 4).all()  # half of them within +-scale


def test_log_odds_of_sure_classes_are_exact() -> None:
    sure = torch.tensor([[80.0, 0.0, 0.0], [0.0, -300.0, 0.0]], dtype=torch.float64)
    p = sure.softmax(1)
    found = log_odds(sure, torch.ones(2), 3)
    assert found[0, 0].item() == pytest.approx(80 - np.log(2))
    assert found[1, 1].item() == pytest.approx(-300 - np.log(2))
    assert torch.allclose(found[0, 1:], torch.special.logit(p[0, 1:]))
    assert log_odds(torch.tensor([[800.0, 0.0, 0.0]]), torch.ones(1), 3)[0, 0] == torch.inf


def test_what_rows_do_not_define_is_not_a_number() -> None:
    only = torch.ones(N, dtype=torch.float64)
    for metric in (auc(), average_precision(), f1(), demographic_parity_gap("g"), equalised_odds_gap("g"), r2()):
        with np.errstate(all="ignore"):
            assert np.isnan(metric.compute(np.zeros(metric.shape)))
    with np.errstate(all="ignore"):
        assert np.isnan(auc().compute(added(auc(), z, only)))
        assert np.isnan(r2().compute(added(r2(), z, only * 3.7)))
        assert np.isnan(demographic_parity_gap("g").compute(added(demographic_parity_gap("g"), z, y, only.long())))
    assert np.isnan(quantile(0.5).compute(np.zeros(1024)))
    assert np.isnan(calibration_error().compute(np.zeros((3, 15))))


def test_a_model_that_gives_no_numbers_ranks_nothing() -> None:
    statistics = added(auc(), z * torch.nan, y)
    bounds = auc().bounds
    assert bounds is not None
    assert auc().compute(statistics) == 0.5
    assert bounds(statistics) == (0.0, 1.0)


def test_all_of_them_can_be_sent_to_another_process() -> None:
    every = [case[0] for case in EXACT.values()] + [case[0] for case in ROUNDED.values()]
    for metric in every:
        again = pickle.loads(pickle.dumps(metric))
        assert again.shape == metric.shape


WRONG: list[tuple[Callable[..., SplitMetric], list[Any], dict[str, Any]]] = [
    (auc, [1], {}), (auc, [], {"bins": 1}), (auc, [], {"scale": 0.0}), (f1, [0], {}), (r2, [0], {}),
    (quantile, [1.1], {}), (quantile, [0.5, "scores"], {}), (calibration_error, [], {"bins": 0}),
    (demographic_parity_gap, ["sex", 1], {}), (equalised_odds_gap, [2], {}),
    (SplitMetric, [torch.sum, sum, 0, "lower"], {}), (SplitMetric, [torch.sum, sum, (2, 2.0), "lower"], {}),
    (SplitMetric, [torch.sum, sum, 2, "best"], {}), (SplitMetric, [3, sum, 2, "lower"], {}),
    (SplitMetric, [torch.sum, sum, 2, "lower"], {"takes": "sex"}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_arguments_are_refused_in_a_sentence(case: int) -> None:
    make, arguments, named = WRONG[case]
    with pytest.raises(BadInput, match=r"Found .*\.$"):
        make(*arguments, **named)


def test_outputs_of_another_number_of_classes_are_refused() -> None:
    with pytest.raises(BadInput, match="3 classes needs 3 logits an example"):
        auc(3).update(torch.zeros(5, 2), torch.zeros(5), torch.ones(5))


@pytest.mark.parametrize("counts", [[0.0, 9e15, 1.0, 0.0], [8e14] * 64, [9e15, 1.0, 1.0, 1.0]])
@pytest.mark.parametrize("q", [0.0, 0.5, 1.0])
def test_a_quantile_of_more_counts_than_floats_hold_lies_in_a_bin_with_counts(counts: list[float], q: float) -> None:
    metric = quantile(q, bins=len(counts))
    assert metric.bounds is not None
    low, high = metric.bounds(np.array(counts))
    assert low <= metric.compute(np.array(counts)) <= high
