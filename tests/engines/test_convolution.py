"""The stacked convolution is what torch's own convolution gives, client by client; its kernels are, too."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from convolving import DEVICE, distance, some
from polyfed.client.device import precision
from polyfed.engines.batched.kernels import why_no_triton
from polyfed.engines.batched.kernels.convolution import ClientConv2d, convolve, replace_convolutions, weight_grad

# clients, images, channels, height, width, out, kernel, padding
SHAPES = [
    (3, 4, 1, 8, 9, 10, (3, 3), (1, 1)),
    (2, 3, 10, 7, 8, 15, (3, 3), (0, 0)),
    (2, 5, 3, 9, 6, 33, (5, 3), (2, 0)),
    (1, 1, 2, 5, 5, 3, (2, 2), (1, 1)),
    (2, 2, 32, 6, 6, 80, (1, 1), (0, 0)),
    (1, 2, 32, 5, 5, 8, (3, 3), (1, 1)),  # a window too large to be unrolled
]


@pytest.mark.parametrize("shape", SHAPES)
def test_clients_convolve_with_their_own_weights(shape: tuple[Any, ...]) -> None:
    (x, w, b), pad = some(shape), list(shape[-1])
    with precision(tf32=False):
        expected = torch.stack([F.conv2d(x[c], w[c], b[c], padding=pad) for c in range(len(x))])
        assert torch.allclose(convolve(x, w, b, pad), expected, atol=1e-4)


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_compute_the_same(shape: tuple[Any, ...], tf32: bool, kernels: ModuleType) -> None:
    (x, w, b), pad = some(shape), list(shape[-1])
    with precision(tf32):
        out = kernels.convolve(x, w, b, pad)
        d = torch.randn_like(out)
        dw, db = kernels.weight_grad(x, d, list(shape[-2]), pad)
    within = 1e-3 if tf32 else 1e-6
    conv2d_weight: Any = torch.nn.grad.conv2d_weight  # torch has no types here
    for c in range(len(x)):
        far = x[c].double(), w[c].double(), b[c].double()
        assert distance(out[c], F.conv2d(*far, padding=pad)) < within
        assert distance(dw[c], conv2d_weight(far[0], w[c].shape, d[c].double(), padding=pad)) < within
    assert distance(db, d.double().sum((1, 3, 4))) < within
    assert dw.is_contiguous()  # as torch.compile was told
    assert db.is_contiguous()


def test_long_sums_are_cut_into_parts(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    x, d = torch.randn(2, 9, 1, 8, 9, device=DEVICE), torch.randn(2, 9, 3, 8, 9, device=DEVICE)
    wanted = weight_grad(x.double(), d.double(), [3, 3], [1, 1])
    for programs in (1, 6, 8192):
        monkeypatch.setattr(kernels, "PROGRAMS", programs)
        with precision(tf32=False):
            found = kernels.weight_grad(x, d, [3, 3], [1, 1])
        assert all(distance(a, b) < 1e-6 for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800000])
def test_what_is_no_number_stays_none(bits: int, kernels: ModuleType) -> None:
    """Rounding by an addition to the bits would turn a GPU's own NaN into a zero."""
    x, w, b = some(SHAPES[0])
    x.view(torch.int32)[0, 1, 0, 4, 4] = bits - 2**32 if bits >= 2**31 else bits
    with precision(tf32=True):
        out = kernels.convolve(x, w, b, [1, 1])
        dw, _ = kernels.weight_grad(x, torch.ones_like(out), [3, 3], [1, 1])
    assert not out[0, 1, :, 3:6, 3:6].isfinite().any()
    assert out[1:].isfinite().all()
    assert not dw[0].isfinite().any()


@pytest.mark.parametrize("shape", SHAPES)
def test_what_torch_is_told_of_the_operators_is_true(shape: tuple[Any, ...]) -> None:
    (x, w, b), pad = some(shape), list(shape[-1])
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        convolve, (x.requires_grad_(), w.requires_grad_(), b.requires_grad_(), pad), test_utils=checks
    )
    d = torch.randn_like(convolve(x, w, b, pad))
    torch.library.opcheck(weight_grad, (x.detach(), d.detach(), list(shape[-2]), pad), test_utils=checks[:2])


def test_a_net_of_them_has_the_gradients_of_the_net() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 4, (3, 2), bias=False),
        nn.Flatten(1),
        nn.Linear(4 * 4 * 5, 3),
    ).double()
    ours = copy.deepcopy(plain)
    replace_convolutions(ours)
    assert [type(net[0]) for net in (plain, ours)] == [nn.Conv2d, ClientConv2d]
    stacked = {
        name: torch.randn(3, *p.shape, dtype=torch.double).requires_grad_() for name, p in plain.named_parameters()
    }
    x = torch.randn(3, 5, 2, 6, 6, dtype=torch.double, requires_grad=True)
    found = []
    for net in (plain, ours):
        out = vmap(lambda p, x, net=net: functional_call(net, p, (x,)))(stacked, x)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*stacked.values(), x])])
    assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True))


def test_a_gpu_without_triton_is_noticed(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = why_no_triton.__wrapped__  # not what was found before
    device = torch.device(DEVICE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert ask(device) == ""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "older" in ask(device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))

    def broken(*args: object) -> Tensor:
        raise OSError("no compiler\nwas found")

    monkeypatch.setattr(kernels, "convolve", broken)
    assert ask(device) == "OSError: no compiler"
    monkeypatch.setattr(kernels, "convolve", lambda *args: torch.zeros(1))
    assert "came out as 0" in ask(device)
    monkeypatch.setattr("polyfed.engines.batched.kernels.find_spec", lambda name: None)
    assert "not installed" in ask(device)


def test_only_narrow_plain_convolutions_are_replaced() -> None:
    kept = [
        nn.Conv2d(1, 4, 3, stride=2), nn.Conv2d(1, 4, 3, dilation=2), nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(1, 4, 3, padding_mode="reflect"), nn.Conv2d(1, 4, 3, padding="same"), nn.Conv2d(64, 48, 3),
        nn.Conv2d(1, 4, 1, padding=1),
    ]  # fmt: skip
    for conv in kept:
        replace_convolutions(conv)
        assert type(conv) is nn.Conv2d
    replace_convolutions(narrow := nn.Conv2d(1, 4, 3))
    assert torch.allclose(narrow(x := torch.randn(1, 8, 8)), F.conv2d(x, narrow.weight, narrow.bias), atol=1e-6)
