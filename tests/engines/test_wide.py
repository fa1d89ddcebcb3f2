"""Wide convolutions of stacked clients: values and gradients as torch has them for each client alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from polyfed.engines.batched.kernels.wide import (
    WideConv2d,
    can_take,
    replace_wide,
    short_of,
    windows_grad,
    windows_times,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = ["float32", *(["tf32", "bfloat16"] if torch.cuda.is_available() else [])]  # the interpreter lacks bfloat16
CLIENTS = 3


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def conv(**settings: Any) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(**{"in_channels": 16, "out_channels": 48, "kernel_size": 3, **settings})


def both(layer: nn.Conv2d, images: Tensor, device: str) -> tuple[list[Tensor], list[Tensor]]:
    """Output, and gradients of images, weights and bias: of each client alone in float64, and of all together."""
    wide = nn.Sequential(copy.deepcopy(layer)).to(device)
    replace_wide(wide)
    assert type(wide[0]) is WideConv2d
    params = {f"0.{n}": torch.stack([p + 0.1 * c for c in range(CLIENTS)]) for n, p in layer.named_parameters()}
    found = []
    for model, dtype, where in ((nn.Sequential(layer.double()), torch.float64, "cpu"), (wide, torch.float32, device)):
        x = images.to(where, dtype).requires_grad_()
        given = {n: p.detach().to(where, dtype).requires_grad_() for n, p in params.items()}
        run: Any = partial(functional_call, model)
        alone = dtype == torch.float64
        each = (run({n: p[c] for n, p in given.items()}, x[c]) for c in range(CLIENTS))
        out = torch.stack(list(each)) if alone else vmap(run)(given, x)
        weights = torch.linspace(-1, 1, out.numel(), device=where, dtype=dtype).view_as(out)
        grads = torch.autograd.grad((out * weights).sum(), [x, *given.values()])
        found.append([t.detach().cpu().double() for t in (out, *grads)])
    return found[0], found[1]


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).norm() / a.norm()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{"padding": 1}, {"kernel_size": 5, "padding": 2, "out_channels": 64}, {"stride": 2, "padding": 1},
     {"kernel_size": 1}, {"kernel_size": 1, "stride": 2, "bias": False}, {"kernel_size": (3, 1), "padding": (1, 0)},
     {"stride": 3}],
    ids=str,
)  # fmt: skip
def test_as_each_client_alone(settings: dict[str, Any], rounded: bool, device: str) -> None:
    with tf32(rounded):
        one, other = both(conv(**settings), torch.randn(CLIENTS, 4, 16, 11, 9), device)
    assert distance(one, other) < (2e-3 if rounded and device == "cuda" else 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_images_without_rows(device: str) -> None:
    with tf32(False):
        one, other = both(conv(padding=1), torch.randn(CLIENTS, 16, 8, 8), device)
    assert distance(one, other) < 1e-6


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_gives_bfloat16(device: str) -> None:
    layer = nn.Sequential(conv(padding=1)).to(device)
    plain = copy.deepcopy(layer)
    replace_wide(layer)
    x = torch.randn(CLIENTS, 4, 16, 8, 8, device=device)
    params = {n: torch.stack([p.detach()] * CLIENTS) for n, p in layer.named_parameters()}
    with torch.autocast(device, torch.bfloat16):
        out = vmap(lambda p, image: functional_call(layer, p, image))(params, x)
    assert out.dtype == torch.bfloat16
    assert float((out[1].double() - plain(x[1]).detach().double()).norm() / out[1].double().norm()) < 1e-2


@pytest.mark.parametrize(
    "settings",
    [{"in_channels": 3}, {"out_channels": 40}, {"dilation": 2}, {"groups": 2}, {"padding": "same"}, {"stride": (1, 2)},
     {"padding": 1, "padding_mode": "reflect"}],
    ids=str,
)  # fmt: skip
def test_others_stay_as_they_are(settings: dict[str, Any]) -> None:
    layer = nn.Sequential(conv(**settings))
    replace_wide(layer)
    assert type(layer[0]) is nn.Conv2d


def test_the_kernels_take_neither_float64_nor_what_32_bits_cannot_count() -> None:
    images = torch.empty(2, 640, 226, 226, 64, device="meta")
    assert can_take(images, 65)
    assert not can_take(images, 66)
    assert not can_take(torch.empty(2, 660, 226, 226, 64, device="meta"), 16)
    assert not can_take(torch.empty(1, 1, 4, 4, 16, dtype=torch.float64), 16)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """The Triton kernels; where there is no GPU, in Triton's interpreter (`conftest`)."""
    pytest.importorskip("triton", reason="Triton has no package for this system")
    from polyfed.engines.batched.kernels import wide_triton

    return wide_triton


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("out", "kernel", "stride"), [(48, [3, 3], 1), (16, [5, 5], 1), (32, [3, 3], 2), (144, [1, 1], 1)], ids=str
)
def test_the_kernels_compute_the_same(out: int, kernel: list[int], stride: int, kind: str, kernels: ModuleType) -> None:
    torch.manual_seed(0)
    device, dtype = DEVICES[-1], torch.bfloat16 if kind == "bfloat16" else torch.float32
    x = torch.randn(2, 3, 9, 8, 16, device=device, dtype=dtype)
    w = torch.randn(2, out, *kernel, 16, device=device, dtype=dtype)
    with tf32(kind == "tf32"):
        found = kernels.windows_times(x, w, stride)
        d = torch.randn_like(found)
        dw = kernels.windows_grad(x, d, kernel, stride)
    far, weights = x.cpu().double(), w.cpu().double()
    within = {"float32": 1e-6, "tf32": 1e-3, "bfloat16": 4e-3}[kind]
    assert distance([windows_times(far, weights, stride, [0, 0])], [found.cpu().double()]) < within
    assert distance([windows_grad(far, d.cpu().double(), kernel, stride)], [dw.cpu().double()]) < within


def test_long_sums_are_cut_into_parts(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    x, d = torch.randn(2, 9, 8, 8, 16, device=DEVICES[-1]), torch.randn(2, 9, 6, 6, 16, device=DEVICES[-1])
    wanted = windows_grad(x.cpu().double(), d.cpu().double(), [3, 3], 1)
    for programs in (1, 12, 512):
        monkeypatch.setattr(kernels, "PROGRAMS", programs)
        with tf32(False):
            assert distance([wanted], [kernels.windows_grad(x, d, [3, 3], 1).cpu().double()]) < 1e-6


def test_numbers_of_tf32_are_the_nearest() -> None:
    x = torch.randn(4096) * torch.exp(10 * torch.randn(4096))
    near = x + short_of(x)
    assert not (near.view(torch.int32) & 0x1FFF).any()
    assert bool(((near - x).abs() <= x.abs() * 2**-11).all())
    assert not short_of(torch.tensor([torch.inf, torch.nan, 1e38, 0.0])).any()
