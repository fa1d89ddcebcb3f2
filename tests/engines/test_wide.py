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

from convolving import products_of_bfloat16
from polyfed.engines.batched.kernels.wide import (
    WideConv2d,
    can_take,
    mirror,
    replace_wide,
    short_of,
    windows_grad,
    windows_times,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = {"float32": (1e-6, 1e-6), "tf32": (1e-3, 4e-5), "bfloat16": (4e-3, 4e-3)}  # errors: products, weight gradients
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


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The Triton kernels; where there is no GPU, in Triton's interpreter (`conftest`)."""
    pytest.importorskip("triton", reason="Triton has no package for this system")
    from polyfed.engines.batched.kernels import wide_triton

    if not torch.cuda.is_available():
        products_of_bfloat16(monkeypatch)
    return wide_triton


def drawn(kind: str, *sizes: tuple[int, ...]) -> Iterator[Tensor]:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    return (torch.randn(*size, device=DEVICES[-1]).to(dtype) for size in sizes)


def far(*tensors: Tensor) -> list[Tensor]:
    return [t.cpu().double() for t in tensors]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("channels", "out", "kernel", "stride"),
    [(16, 48, [3, 2], 1), (16, 16, [5, 5], 1), (16, 32, [3, 3], 2), (16, 144, [1, 1], 1), (64, 16, [2, 3], 1),
     (80, 64, [1, 3], 1)],
    ids=str,
)  # fmt: skip
def test_the_kernels_compute_the_same(
    channels: int, out: int, kernel: list[int], stride: int, mirrored: bool, kind: str, kernels: ModuleType
) -> None:
    ends = (channels, out) if mirrored else (out, channels)
    x, w = drawn(kind, (2, 3, 9, 8, channels), (2, ends[0], *kernel, ends[1]))
    with tf32(kind == "tf32"):
        found = kernels.windows_times(x, w, stride, mirrored)
        d = torch.randn_like(found)
        dw = kernels.windows_grad(x, d, kernel, stride)
    assert found.dtype == dw.dtype == x.dtype
    images, weights, grads = far(x, w, d)
    assert distance([windows_times(images, weights, stride, [0, 0], mirrored)], far(found)) < KINDS[kind][0]
    assert distance([windows_grad(images, grads, kernel, stride)], far(dw)) < KINDS[kind][1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("programs", [1, 12, 512])
def test_long_sums_are_cut_into_parts(
    programs: int, kind: str, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, d = drawn(kind, (2, 9, 8, 8, 16), (2, 9, 6, 6, 16))
    images, grads = far(x, d)
    monkeypatch.setattr(kernels, "PROGRAMS", programs)
    with tf32(kind == "tf32"):
        found = kernels.windows_grad(x, d, [3, 3], 1)
    assert found.dtype == x.dtype
    assert distance([windows_grad(images, grads, [3, 3], 1)], far(found)) < KINDS[kind][1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_tile_that_a_benchmark_tries_computes_the_same(kind: str, kernels: ModuleType) -> None:
    x, w, d = drawn(kind, (1, 1, 7, 7, 32), (1, 272, 3, 3, 32), (1, 1, 5, 5, 272))
    products, grads = kernels.forward_tiles(272, x.dtype), kernels.grad_tiles(272, 288, split=True)
    assert len(products) == 5
    assert len({*products, *grads}) == len(products) + len(grads)
    with tf32(kind == "tf32"):
        found = [kernels.windows_times(x, w, 1, tile=tile) for tile in products]
        found_grads = [kernels.windows_grad(x, d, [3, 3], 1, tile) for tile in grads]
    images, weights, ends = far(x, w, d)
    wanted, wanted_grad = windows_times(images, weights, 1, [0, 0], False), windows_grad(images, ends, [3, 3], 1)
    assert all(distance([wanted], far(f)) < KINDS[kind][0] for f in found)
    assert all(distance([wanted_grad], far(f)) < KINDS[kind][1] for f in found_grads)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_mirrored_product_is_one_with_mirrored_weights(stride: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 7, 8, 4, dtype=torch.float64), torch.randn(2, 4, 3, 2, 5, dtype=torch.float64)
    given = x.requires_grad_(), w.requires_grad_()
    found = windows_times(x, w, stride, [0, 0], True)
    wanted = windows_times(x, mirror(w).contiguous(), stride, [0, 0], False)
    weights = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    results = [[out.detach(), *torch.autograd.grad((out * weights).sum(), given)] for out in (found, wanted)]
    assert distance(results[1], results[0]) < 1e-12
    each = vmap(lambda a, b: windows_times(a.unsqueeze(0), b.unsqueeze(0), stride, [0, 0], True).squeeze(0))
    assert distance(results[1][:1], [each(x, w).detach()]) < 1e-12
    torch.library.opcheck(windows_times, (x, w, stride, [0, 0], True), test_utils="test_faketensor")


def test_numbers_of_tf32_are_the_nearest() -> None:
    x = torch.randn(4096) * torch.exp(10 * torch.randn(4096))
    near = x + short_of(x)
    assert not (near.view(torch.int32) & 0x1FFF).any()
    assert bool(((near - x).abs() <= x.abs() * 2**-11).all())
    assert not short_of(torch.tensor([torch.inf, torch.nan, 1e38, 0.0])).any()
