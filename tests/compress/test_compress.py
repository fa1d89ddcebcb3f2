"""Compressors: what they keep, what they cost, and the sketch's statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from polyfed.compress import Compressor, compressors
from polyfed.compress.sketch import hashes, sketch
from polyfed.core.errors import BadInput
from polyfed.core.messages import Reply
from polyfed.core.schema import schema_of

M, D = 3, 400


def jacobian(seed: int = 0, decay: float = 0.0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(M, D, generator=g, dtype=torch.float64) * torch.arange(1, D + 1).double() ** -decay


def through(compressor: Compressor, H: Tensor, own: int = 5) -> Tensor:
    """What the server makes of what a client sends, which is what the schema says."""
    arrays = compressor.encode(H, (3, own))
    schema = schema_of(compressor.reply(M, D), {"M": M}, H.dtype)
    assert {name: (tuple(a.shape), a.dtype) for name, a in arrays.items()} == schema
    sent = {name: a.unsqueeze(0) for name, a in arrays.items()}
    return compressor.lift(sent, [(3, own)], M, D)[0]


def test_exact_loses_nothing() -> None:
    assert torch.equal(through(compressors["exact"](), jacobian()), jacobian())


def test_the_sketch_is_linear_and_all_clients_hash_alike() -> None:
    A, B = jacobian(1), jacobian(2)
    assert torch.allclose(sketch(A, 32, 7) + sketch(B, 32, 7), sketch(A + B, 32, 7))
    compressor = compressors["sketch"](width=64)
    assert torch.equal(through(compressor, A, own=1), through(compressor, A, own=2))
    assert through(compressor, A).shape == (M, 64)
    assert not torch.equal(sketch(A, 32, 7), sketch(A, 32, 8))


def test_hashes_are_fair() -> None:
    bucket, sign = hashes(3, 64_000, 16)
    counts = np.bincount(bucket.numpy(), minlength=16)
    assert ((counts - 4000) ** 2 / 4000).sum() < 45  # chi-square, 15 degrees of freedom
    assert abs(float(sign.double().mean())) < 0.02
    assert abs(float((sign * (bucket.double() - 7.5)).mean())) < 0.1


def test_sketched_inner_products_are_unbiased_with_the_stated_variance() -> None:
    x, y = jacobian(1)[:1], jacobian(2)[:1]
    k, inner = 20, float(x[0] @ y[0])
    found = np.array([float(sketch(x, k, s)[0] @ sketch(y, k, s)[0]) for s in range(3000)])
    variance = (x.square().sum() * y.square().sum() + inner**2 - 2 * (x.square() * y.square()).sum()) / k
    assert abs(found.mean() - inner) < 4 * np.sqrt(float(variance) / len(found))
    assert found.var() == pytest.approx(float(variance), rel=0.12)


def test_gram_error_falls_like_one_over_root_k() -> None:
    H = jacobian()
    G = H @ H.T

    def error(k: int) -> float:
        return float(np.mean([float((sketch(H, k, s) @ sketch(H, k, s).T - G).norm() / G.norm()) for s in range(200)]))

    slope = np.polyfit(np.log([10, 40, 160]), np.log([error(10), error(40), error(160)]), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.08)


def test_rand_svd_keeps_what_has_low_rank() -> None:
    compressor = compressors["rand-svd"](budget=1.0)
    side, r = compressor.reply(M, D)["U"].shape({})
    assert 2 * side * r <= D
    A = torch.outer(torch.randn(side, dtype=torch.float64), torch.randn(side, dtype=torch.float64))
    H = A.reshape(-1)[: M * D].view(M, D)
    H_padded = torch.nn.functional.pad(H.reshape(-1), (0, side * side - M * D)).view(side, side)
    best = torch.linalg.svdvals(H_padded)[r:].norm()
    lost = (through(compressor, H) - H).norm()
    assert lost <= 1.5 * best + 1e-9


def test_top_k_keeps_the_largest() -> None:
    H = jacobian(decay=1.0)
    kept = through(compressors["top-k"](budget=1.0), H)
    places = kept != 0
    assert int(places.sum()) == D // 2
    assert torch.equal(kept[places], H[places])
    assert H[~places].abs().max() <= H[places].abs().min()


def test_a_random_mask_is_unbiased() -> None:
    H = jacobian()
    compressor = compressors["random-mask"](budget=1.0)
    mean = torch.stack([through(compressor, H, own=s) for s in range(2000)]).mean(0)
    assert (mean - H).norm() / H.norm() < 0.06


def test_client_grams_are_exact_for_clients_that_agree() -> None:
    H = jacobian()
    compressor = compressors["client-grams"]()
    total = torch.stack([through(compressor, H) for _ in range(4)]).sum(0)
    assert torch.allclose(compressor.gram(total, torch.full((M,), 4.0).double()), H @ H.T)


@pytest.mark.parametrize("name", ["rand-svd", "top-k", "random-mask"])
@pytest.mark.parametrize("budget", [0.5, 1.0])
def test_uploads_keep_to_the_budget(name: str, budget: float) -> None:
    sent = compressors[name](budget=budget).encode(jacobian().float(), (0, 0))
    payload = sum(a.numel() * a.element_size() for a in sent.values())
    assert payload <= budget * D * 4
    assert Reply(sent).nbytes == len(Reply(sent).encode())


def test_widths_and_budgets_that_cannot_be() -> None:
    with pytest.raises(BadInput, match=r"at most the 400 parameters it sketches\. Found 500"):
        compressors["sketch"](width=500).reply(M, D)
    with pytest.raises(BadInput, match="needs a budget of at least"):
        compressors["rand-svd"](budget=0.01).reply(M, D)


def test_one_client_that_is_not_finite_does_not_fail_the_others() -> None:
    """As LAPACK would, where many clients are compressed at once."""
    H = torch.randn(3, 2, 40, generator=torch.Generator().manual_seed(0))
    H[1, 0, 7] = torch.inf
    compress = compressors["rand-svd"]().encode
    sent = torch.func.vmap(lambda H, key: compress(H, (0, key)))(H, torch.arange(3))
    assert sent["U"].isfinite().all((1, 2)).tolist() == [True, False, True]
    alone = compress(H[2], (0, 2))
    assert torch.allclose(sent["U"][2] @ sent["V"][2], alone["U"] @ alone["V"], atol=1e-5)
