"""Attention of many clients at once is torch's own: masks of every shape, and dropout of each client's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from convolving import DEVICE, distance
from polyfed.engines.batched.kernels.attention import StackedAttention, attend_whole, attend_whole_grad, fits

LENGTH = 7


def test_dropout_of_attention_is_each_clients_own_and_zero_in_the_mean() -> None:
    """Each weight is 0 or doubled: the mean over many draws is the product without dropout."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 3, 4, generator=g) for _ in range(3))
    mask = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with StackedAttention():
            return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.5)

    many = [t.expand(4000, *t.shape) for t in (q, k, v)]
    torch.manual_seed(0)
    drawn = torch.vmap(one, randomness="different")(*many)
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.isfinite(drawn).all()  # who sees nobody is no NaN
    plain = F.scaled_dot_product_attention(q, k, v, mask)
    assert float((drawn.mean(0) - plain)[..., :2, :].abs().max()) < 6 / math.sqrt(4000)


@pytest.mark.parametrize("shape", [(LENGTH, LENGTH), (1, 1, LENGTH, LENGTH), (3, 1, 1, LENGTH), (3, 2, LENGTH, LENGTH)])
@pytest.mark.parametrize("own", [True, False])
def test_masks_of_every_shape_are_each_clients_own_or_everybodys(shape: tuple[int, ...], own: bool) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, 3, 2, LENGTH, 4, generator=g) for _ in range(3))
    masks = torch.randn(5, *shape, generator=g)

    def one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        with StackedAttention():
            return F.scaled_dot_product_attention(q, k, v, mask)

    found = torch.vmap(one, in_dims=(0, 0, 0, 0 if own else None))(q, k, v, masks if own else masks[0])
    for c in range(5):
        torch.testing.assert_close(found[c], F.scaled_dot_product_attention(q[c], k[c], v[c], masks[c if own else 0]))


def test_attention_of_a_sequence_alone() -> None:
    q, k, v = (torch.randn(5, LENGTH, 4, generator=torch.Generator().manual_seed(s)) for s in range(3))

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with StackedAttention():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.testing.assert_close(torch.vmap(one)(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True))


# our own kernel for short sequences, run by Triton's interpreter where there is no GPU

MASKS = {
    "none": None,
    "causal": None,
    "words": torch.tensor([[True] * 5 + [False, True]]),
    "rows": (torch.arange(42) % 3 != 1).view(3, 1, 2, 7).repeat(1, 1, 3, 1)[:, :, :5],
    "numbers": torch.linspace(-2, 2, 70).view(1, 2, 5, 7),
}


def packed(words: int, keys: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of 3 rows and 2 heads as models have them: parts of one product, words before heads."""
    g = torch.Generator().manual_seed(0)
    long = torch.randn(3, max(words, keys), 3, 2, 16, generator=g).to(DEVICE, dtype)
    q, k, v = long.permute(2, 0, 3, 1, 4)
    return q[:, :, :words].requires_grad_(), k[:, :, :keys].requires_grad_(), v[:, :, :keys].requires_grad_()


@pytest.mark.parametrize("kind", MASKS)
def test_short_sequences_have_torchs_attention_and_gradient(kind: str) -> None:
    q, k, v = packed(5, 7)
    mask, causal = MASKS[kind], kind == "causal"
    mask = None if mask is None else mask.to(DEVICE)
    above = torch.randn(3, 2, 5, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    both = []
    for attended in (
        attend_whole(q, k, v, mask, causal, 0.3),
        F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=0.3),
    ):
        both.append((attended.detach(), *torch.autograd.grad(attended, (q, k, v), above)))
    for found, wanted in zip(*both, strict=True):
        assert distance(found, wanted) < 1e-5


@pytest.mark.parametrize(("words", "keys"), [(128, 128), (80, 80), (1, 20), (100, 3)])
def test_blocks_of_queries_are_as_one(words: int, keys: int) -> None:
    q, k, v = packed(words, keys)
    found, wanted = attend_whole(q, k, v, None, False, 0.25), F.scaled_dot_product_attention(q, k, v, scale=0.25)
    assert distance(found.detach(), wanted.detach()) < 1e-5
    some = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found, wanted)]
    assert all(distance(a, b) < 1e-5 for a, b in zip(*some, strict=True))


def test_the_output_lies_word_by_word() -> None:
    """So that the heads of a word are joined without a copy."""
    q, k, v = packed(6, 6)
    found = attend_whole(q, k, v, None, True, 0.25)
    assert found.transpose(1, 2).is_contiguous()
    assert all(g.transpose(1, 2).is_contiguous() for g in attend_whole_grad(q, k, v, None, found, True, 0.25))


def test_who_sees_nobody_has_nothing_and_no_gradient() -> None:
    q, k, v = packed(4, 4)
    mask = torch.ones(4, 4, dtype=torch.bool, device=DEVICE)
    mask[2] = False
    found = attend_whole(q, k, v, mask, False, 0.25)
    assert not found[:, :, 2].any()
    dq, dk, dv = torch.autograd.grad(found.sum(), (q, k, v))
    assert not dq[:, :, 2].any()
    assert bool(torch.isfinite(dk).all() and torch.isfinite(dv).all())


def test_half_precision_is_summed_in_float32() -> None:
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # Triton's interpreter multiplies bfloat16's bits
    q, k, v = packed(64, 64, half)
    found = attend_whole(q, k, v, None, True, 0.25)
    wanted = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, scale=0.25)
    assert found.dtype == half
    assert distance(found.detach().float(), wanted.detach()) < 1e-2


def test_what_the_kernel_is_not_for_goes_to_torch() -> None:
    q, k, v = (torch.zeros(3, 2, 4, 32, dtype=torch.bfloat16) for _ in range(3))
    assert fits(q, k, v, None)
    assert fits(q, k, v, torch.zeros(4, 4))
    assert not fits(q.float(), k.float(), v.float(), None)
    assert not fits(q, k.half(), v.half(), None)
    assert not fits(q, k.repeat(1, 1, 40, 1), v.repeat(1, 1, 40, 1), None)  # too long
    assert not fits(q[..., :9], k[..., :9], v[..., :9], None)  # of another width
    assert not fits(q, k[:1], v[:1], None)  # one row of keys for all
    assert not fits(q, k, v[:, :1], None)
    assert not fits(q[0], k[0], v[0], None)
    assert not fits(q, k, v, torch.zeros(4, 4, requires_grad=True))


def test_the_operators_are_what_torch_is_told() -> None:
    q, k, v = packed(5, 7)
    checks = "test_schema", "test_faketensor", "test_autograd_registration"
    torch.library.opcheck(attend_whole, (q, k, v, None, True, 0.25), test_utils=checks)
    d = torch.randn(3, 2, 5, 16, device=DEVICE)
    given = q.detach(), k.detach(), v.detach(), None, d, True, 0.25
    torch.library.opcheck(attend_whole_grad, given, test_utils=checks[:2])
