"""Convolution, ReLU and pooling in one step are what torch's own three are; the kernels are, too."""

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
from polyfed import Problem, train
from polyfed.algorithms import algorithms
from polyfed.client.device import precision
from polyfed.data.build import build_data
from polyfed.engines.batched.kernels.convolution import replace_convolutions
from polyfed.engines.batched.kernels.pooled import (
    PooledSequential,
    can_pool,
    convolve_pooled,
    replace_pooled,
)
from polyfed.engines.batched.stacked import Stacked
from polyfed.models import models

# clients, images, channels, height, width, out, kernel, padding: outputs of even and of odd sizes, and of one square
SHAPES = [
    (3, 4, 1, 8, 10, 10, (3, 3), (1, 1)),
    (2, 3, 10, 7, 8, 15, (3, 3), (0, 0)),
    (2, 5, 3, 9, 6, 33, (5, 3), (2, 0)),
    (1, 1, 2, 4, 4, 3, (3, 3), (0, 0)),
    (1, 2, 32, 5, 7, 8, (3, 3), (1, 1)),  # a window too large to be unrolled
]


def written_out(x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> Tensor:
    return torch.stack([F.max_pool2d(F.relu(F.conv2d(*one, padding=pad)), 2) for one in zip(x, w, b, strict=True)])


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_three_layers(shape: tuple[Any, ...]) -> None:
    (x, w, b), pad = (t.requires_grad_() for t in some(shape, torch.float64)), list(shape[-1])
    every, (out, which) = (x, w, b), convolve_pooled(x, w, b, pad)
    wanted = written_out(x, w, b, pad)
    assert torch.allclose(out, wanted)
    assert torch.equal(which == 4, out == 0)
    d = torch.randn_like(wanted)
    found = torch.autograd.grad(out, every, d)
    assert all(torch.allclose(a, b) for a, b in zip(found, torch.autograd.grad(wanted, every, d), strict=True))


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_compute_the_same(shape: tuple[Any, ...], tf32: bool, kernels: ModuleType) -> None:
    (x, w, b), pad = some(shape), list(shape[-1])
    with precision(tf32):
        out, which = kernels.convolve_pooled(x, w, b, pad)
    within = 1e-3 if tf32 else 1e-6
    assert distance(out, written_out(x.double(), w.double(), b.double(), pad)) < within
    if not tf32:  # which number is the largest does not change with the rounding
        wanted = convolve_pooled(x.double(), w.double(), b.double(), pad)
        assert torch.equal(which, wanted[1])
    assert out.is_contiguous()  # as torch.compile was told
    assert which.is_contiguous()


def test_the_first_of_equals_has_the_gradient(kernels: ModuleType) -> None:
    x, w, b = torch.ones(1, 1, 1, 4, 4), torch.ones(1, 2, 1, 1, 1), torch.zeros(1, 2)
    w[0, 1] = -1.0  # and below 0 nobody has
    given = [t.to(DEVICE) for t in (x, w, b)]
    for operator in (convolve_pooled, kernels.convolve_pooled):
        with precision(tf32=False):
            out, which = operator(*given, [0, 0])
        assert out[0, 0, :, 0, 0].tolist() == [1.0, 0.0]
        assert which[0, 0, :, 0, 0].tolist() == [0, 4]


def test_what_is_no_number_stays_none(kernels: ModuleType) -> None:
    x, w, b = some(SHAPES[0])
    x[0, 1, 0, 4, 4] = torch.nan
    with precision(tf32=True):
        out, _ = kernels.convolve_pooled(x, w, b, [1, 1])
    assert out[0, 1, :, 1:3, 1:3].isnan().all()
    assert out[1:].isfinite().all()


def test_kernels_that_do_not_run_here_are_left_alone(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, device = can_pool.__wrapped__, torch.device(DEVICE)  # not what was found before
    monkeypatch.setattr("polyfed.engines.batched.kernels.pooled.why_no_triton", lambda device: "")
    with precision(tf32=False):  # which Triton's interpreter does not round as a GPU does
        assert ask(device)

    def broken(*args: object) -> Any:
        raise RuntimeError("no layout")

    for wrong in (broken, lambda *args: (torch.zeros(1), torch.zeros(1))):
        monkeypatch.setattr(kernels, "convolve_pooled", wrong)
        assert not ask(device)
    monkeypatch.setattr("polyfed.engines.batched.kernels.pooled.why_no_triton", lambda device: "not installed")
    assert not ask(device)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_torch_is_told_of_the_operators_is_true(shape: tuple[Any, ...]) -> None:
    (x, w, b), pad = some(shape), list(shape[-1])
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    every = (x.requires_grad_(), w.requires_grad_(), b.requires_grad_(), pad)
    torch.library.opcheck(convolve_pooled, every, test_utils=checks)


def net(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*layers).double()


def replaced(plain: nn.Module) -> Any:
    ours = copy.deepcopy(plain)
    replace_convolutions(ours)
    replace_pooled(ours)
    return ours


def test_a_net_of_them_has_the_gradients_of_the_net() -> None:
    relu = nn.ReLU()  # which two places share
    plain = net(nn.Conv2d(2, 6, 3, padding=1), nn.MaxPool2d(2), relu, nn.Conv2d(6, 4, (3, 2), bias=False), relu,
                nn.MaxPool2d((2, 2)), nn.Flatten(1), nn.Linear(4 * 1 * 2, 3))  # fmt: skip
    ours = replaced(plain)
    assert type(ours) is PooledSequential
    stacked = {
        name: torch.randn(3, *p.shape, dtype=torch.double).requires_grad_() for name, p in plain.named_parameters()
    }
    x = torch.randn(3, 5, 2, 8, 10, dtype=torch.double, requires_grad=True)
    found = []
    for one in (plain, ours):
        out = vmap(lambda p, x, one=one: functional_call(one, p, (x,)))(stacked, x)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*stacked.values(), x])])
    assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True))
    assert torch.allclose(ours[:6](x[0, 0]), plain[:6](x[0, 0]))  # one image by itself
    assert torch.allclose(ours[:2](x[0]), plain[:2](x[0]))  # its layers are what they were


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.0), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3)),
        (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, padding=1)),
        (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
        (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2)),
        (nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 4, 3), nn.ReLU()),
    ],
)
def test_other_layers_stay_as_they_are(layers: tuple[nn.Module, ...]) -> None:
    ours = replaced(net(*layers))
    assert type(ours) is nn.Sequential


def test_a_layer_that_somebody_watches_is_called() -> None:
    plain = net(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    seen: list[Any] = []
    ours, x = replaced(plain), torch.randn(2, 1, 8, 8).double()
    ours[1].register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    assert torch.allclose(ours(x), plain(x))
    assert seen == [(2, 4, 6, 6)]
    ours = replaced(plain)
    ours[2].register_full_backward_pre_hook(lambda module, d: seen.append("back"))
    ours(x).sum().backward()
    assert seen[1:] == ["back"]


def test_what_comes_after_may_change_it_in_place() -> None:
    plain = net(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Hardtanh(inplace=True), nn.Flatten(1))
    ours, x = replaced(plain), torch.randn(3, 2, 1, 8, 8).double()
    w = torch.randn(3, 4, 1, 3, 3).double().requires_grad_()
    b = torch.zeros(3, 4).double()
    found = []
    for one in (plain, ours):
        out = vmap(lambda w, b, x, one=one: functional_call(one, {"0.weight": w, "0.bias": b}, (x,)))(w, b, x)
        found.append([out, *torch.autograd.grad(out.square().sum(), [w])])
    assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True))


def test_other_channels_than_the_weights_are_refused() -> None:
    x, w, b = some(SHAPES[0])
    with pytest.raises(ValueError, match="the 1 channels of the weights"):
        convolve_pooled(x.expand(-1, -1, 2, -1, -1), w, b, [1, 1])


def test_the_compiler_sees_it_whole() -> None:
    ours = replaced(net(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(1)))
    seen: list[Any] = []

    def backend(graph: Any, given: Any) -> Any:
        seen.extend(node.target for node in graph.graph.nodes)
        return graph

    fast: Any = torch.compile(ours, backend=backend, fullgraph=True)
    x = torch.randn(2, 1, 6, 8).double()
    assert torch.allclose(fast(x), ours(x))
    assert torch.ops.polyfed.convolve_pooled.default in seen
    torch.compiler.reset()


@pytest.mark.parametrize("method", ["fedavg", "fedcmoo", "fsmgda"])
def test_training_with_it_is_training_without(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where nobody else uses it; on a GPU every test of a convolution net does."""
    plain = Stacked._convolutions

    def pooled(self: Stacked) -> None:
        plain(self)
        replace_pooled(self.model)
        assert any(type(module) is PooledSequential for module in self.model.modules())

    monkeypatch.setattr(Stacked, "_convolutions", pooled)
    found = []
    for engine in ("local", {"name": "batched", "device": "cpu"}):
        dataset, federation, _ = build_data({"name": "two-digits", "clients": 4, "rows_per_client": 12}, 0)
        torch.manual_seed(0)
        problem = Problem(models["conv"](dataset, channels=4, hidden=8), dataset.objectives)
        algorithm = algorithms[method](lr=0.1, local_steps=2, batch_size=5)
        result = train(problem, federation, algorithm, rounds=2, engine=engine, keep=False)
        found.append(torch.cat([p.detach().reshape(-1) for p in result.model.parameters()]))
    assert distance(found[1], found[0]) < 1e-6
