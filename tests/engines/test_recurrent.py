"""Recurrent layers of many clients are torch's own: values, last states and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyfed.client.device import precision
from polyfed.engines.batched.kernels.recurrent import (
    ClientGRU,
    ClientLSTM,
    _compiled,
    _gru_step,
    lstm,
    lstm_back,
    replace_recurrent,
    unreplaced,
)

SETTINGS: list[dict[str, Any]] = [
    {}, {"num_layers": 2, "batch_first": True}, {"bidirectional": True, "num_layers": 2}, {"bias": False},
]  # fmt: skip


def layer(kind: Any, **settings: Any) -> tuple[nn.Module, nn.Module]:
    """torch's, and the one that takes its place."""
    torch.manual_seed(0)
    own = kind(3, 4, **settings).double()
    other = copy.deepcopy(own)
    replace_recurrent(other)
    return own, other


def values(module: nn.Module, x: Tensor, state: Any) -> tuple[list[Tensor], list[Tensor]]:
    """What comes out, and the gradients of a function of all of it."""
    out, last = module(x, state)
    every = [out, *([last] if isinstance(last, Tensor) else last)]
    total = sum(((t.sin() * (k + 1)).sum() for k, t in enumerate(every)), torch.zeros(()))
    return every, list(torch.autograd.grad(total, [x, *module.parameters()]))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_values_states_and_gradients_are_torchs(kind: Any, given: bool, settings: dict[str, Any]) -> None:
    own, other = layer(kind, **settings)
    assert isinstance(other, ClientLSTM | ClientGRU)
    x = torch.randn(5, 5, 3, dtype=torch.float64, requires_grad=True)
    many = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
    state = torch.randn(many, 5, 4, dtype=torch.float64)
    begin: Any = (state if kind is nn.GRU else (state, state.cos())) if given else None
    for mine, wanted in zip(values(other, x, begin), values(own, x, begin), strict=True):
        for a, b in zip(mine, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_one_sequence_without_rows(kind: Any) -> None:
    own, other = layer(kind, num_layers=2)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    for a, b in zip(values(other, x, None)[0], values(own, x, None)[0], strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_each_client_has_its_own_weights(kind: Any) -> None:
    own, other = layer(kind, batch_first=True)
    weights = {n: p.detach() + torch.randn(3, *p.shape, dtype=torch.float64) for n, p in own.named_parameters()}
    x = torch.randn(3, 2, 5, 3, dtype=torch.float64)

    def outputs(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = functional_call(other, weights, (x,))[0]
        return found

    found = torch.vmap(outputs)(weights, x)
    for c in range(3):
        alone = functional_call(own, {n: w[c] for n, w in weights.items()}, (x[c],))[0]
        torch.testing.assert_close(found[c], alone)


def test_dropout_between_layers_is_for_training_alone() -> None:
    _, other = layer(nn.GRU, num_layers=2, dropout=0.5)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    torch.manual_seed(0)
    first, second = other(x)[0], other(x)[0]
    assert not torch.equal(first, second)
    other.eval()
    assert torch.equal(other(x)[0], other(x)[0])


def test_what_is_not_replaced_stays_as_it_is() -> None:
    model = nn.ModuleList([nn.RNN(3, 4), nn.LSTM(3, 4, proj_size=2)])
    replace_recurrent(model)
    assert [type(m) for m in model] == [nn.RNN, nn.LSTM]
    assert unreplaced(model)
    _, other = layer(nn.LSTM)
    with pytest.raises(NotImplementedError, match="no packed sequences"):
        other(nn.utils.rnn.pack_sequence([torch.randn(2, 3)]))


def test_steps_of_what_has_gradients_compile_without_a_warning() -> None:
    """Which would be an error where a user has asked for that; steps are views of what has gradients."""
    gates = 2 * torch.randn(2, 3, 5, 12, requires_grad=True)
    h, state = torch.randn(2, 5, 12), torch.randn(2, 5, 4)
    found = _compiled(_gru_step, backend="eager")(gates.unbind(1)[1], h, state)
    torch.testing.assert_close(found, _gru_step(gates[:, 1].detach(), h, state))


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(3, 5), (20, 33), (16, 32)])
def test_the_kernels_of_a_gpu_are_the_same_steps(rows: int, size: int, tf32: bool) -> None:
    """On a GPU, or by Triton's interpreter; steps of every length of rows and units, beside float64."""
    kernels = pytest.importorskip("polyfed.engines.batched.kernels.recurrent_triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    g = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g).to(device)

    gates, w = some(2, 3, rows, 4 * size), some(2, 4 * size, size) / size**0.5
    h, c, d, dc = some(2, rows, size), some(2, rows, size), some(2, 3, rows, size), some(2, 3, rows, size)
    far = [t.cpu().double() for t in (gates, w, h, c)]
    wanted = lstm(*far)
    grads = lstm_back(d.cpu().double(), dc.cpu().double(), *wanted, *far[1:])
    with precision(tf32):
        found = kernels.forward(gates, w, h, c)
        back = kernels.backward(d, dc, found[1], found[2], w, c)
    within = 2e-3 if tf32 else 1e-5
    for a, b in zip((*found, *back), (*wanted, grads[0], grads[3]), strict=True):
        assert float((a.cpu() - b).norm() / b.norm()) < within
