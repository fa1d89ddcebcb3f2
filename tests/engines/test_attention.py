"""Attention of many clients at once is torch's own: masks of every shape, and dropout of each client's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from polyfed.engines.batched.kernels.attention import StackedAttention

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
