"""Models of every kind that people train today run as one program, and give what one client after another gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

import guarded
from polyfed import Federation, Layer, Objective, Problem, train
from polyfed.algorithms import algorithms

GPU = ["cuda"] if torch.cuda.is_available() else []
WORDS, LENGTH, WIDE = 11, 7, 8
SIZES = (2, 6, 10, 14)  # rows of clients, for batches of 4
METHODS = ["fedavg", "fsmgda", "fedcmoo"]
HARDLY = 1e-12  # a chance of dropout that never drops anything, and takes its way all the same


def sequences() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, (sum(SIZES), LENGTH))
    x[:, 2] = np.maximum(x[:, 2], 1)  # somebody to be seen, where 0 is padding
    return _clients(x, x[:, 0] % 3, x[:, 1] % 2)


def images() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sum(SIZES), 3, 8, 8)).astype(np.float32)
    return _clients(x, rng.integers(0, 3, len(x)), rng.integers(0, 2, len(x)))


def _clients(x: Any, a: Any, b: Any) -> Federation:
    return Federation.from_arrays(x, {"a": a, "b": b}, clients=np.split(np.arange(len(x)), np.cumsum(SIZES)[:-1]))


class Headed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleDict({"a": nn.Linear(WIDE, 3), "b": nn.Linear(WIDE, 2)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x)
        return {name: head(h) for name, head in self.heads.items()}


class Attention(nn.Module):
    """One layer of attention: causal, or with a mask of the words that are there; queries may share keys."""

    def __init__(self, mask: bool = False, dropout: float = 0.0, shared: bool = False) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDE, padding_idx=0 if mask else None), nn.LayerNorm(WIDE)
        kept = 4 if shared else WIDE
        self.query, self.key, self.value = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, kept), nn.Linear(WIDE, kept)
        self.mask, self.dropout, self.shared = mask, dropout, shared

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.words(x))
        q, k, v = (f(h).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = (x != 0)[:, None, None, :] | torch.eye(LENGTH, dtype=torch.bool, device=x.device) if self.mask else None
        found = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.shared,
        )  # fmt: skip
        return found.transpose(1, 2).flatten(2).mean(1)


class Imported(Attention):
    """Attention whose author imported torch's function by its name."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.norm(self.words(x))
        return scaled_dot_product_attention(q, q, q, is_causal=True).mean(1)


class Twice(Attention):
    """A module that is registered under two names, and a parameter that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.value = self.key
        self.last = nn.Linear(WIDE, WORDS, bias=False)
        self.last.weight = self.words.weight
        self.down = nn.Linear(WORDS, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.last(super().forward(x)))
        return found


class Encoder(nn.Module):
    """torch's own layer, which is told of padding or not."""

    def __init__(self, mask: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.mask = nn.Embedding(WORDS, WIDE), mask
        self.layer = nn.TransformerEncoderLayer(WIDE, 2, 16, dropout, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.words(x), src_key_padding_mask=x == 0 if self.mask else None)
        return found.mean(1)


class Rotary(nn.Module):
    """RMSNorm, queries and keys that are turned by their positions (RoPE), and words that are also what comes out."""

    def __init__(self, numbers: str = "real") -> None:
        super().__init__()
        self.words, self.norm, self.numbers = nn.Embedding(WORDS, WIDE), nn.RMSNorm(WIDE), numbers
        self.into, self.down = nn.Linear(WIDE, 2 * WIDE, bias=False), nn.Linear(WORDS, WIDE)
        self.register_buffer("speeds", 10.0 ** -(torch.arange(WIDE // 2) / 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.words(x))
        q, k = (self._turned(t).unsqueeze(1) for t in self.into(h).chunk(2, -1))
        h = F.scaled_dot_product_attention(q, k, h.unsqueeze(1), is_causal=True).squeeze(1)
        found: Tensor = self.down((h @ self.words.weight.T).mean(1))  # tied
        return found

    def _turned(self, h: Tensor) -> Tensor:
        speeds: Any = self.speeds
        angles = torch.arange(LENGTH, device=h.device)[:, None] * speeds
        if self.numbers == "complex":  # as Llama's first code has it
            pairs = torch.view_as_complex(h.reshape(*h.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
        left, right = h.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], **settings: Any) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, 4), kind(4, WIDE, 2, batch_first=True, **settings)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.words(x))[0][:, -1]
        return found[:, :WIDE]


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, WIDE),
        nn.BatchNorm1d(WIDE, momentum=0.3), nn.BatchNorm1d(WIDE, affine=False, track_running_stats=False),
    )  # fmt: skip


def windows() -> nn.Module:
    """Depthwise, dilated and strided convolutions, and one that is depthwise and dilated."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, dilation=2), nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=6, dilation=2, padding=2), nn.Conv2d(6, 4, 1, stride=2), nn.Flatten(),
        nn.Linear(16, WIDE),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[[], Federation]]] = {
    "causal": (Attention, sequences),
    "masked": (lambda dropout=HARDLY: Attention(mask=True, dropout=dropout), sequences),
    "masked, no dropout": (lambda: Attention(mask=True), sequences),
    "shared keys": (lambda: Attention(shared=True), sequences),
    "shared keys, dropout": (lambda: Attention(shared=True, dropout=HARDLY), sequences),
    "imported": (Imported, sequences),
    "twice": (Twice, sequences),
    "encoder": (Encoder, sequences),
    "encoder, masked": (lambda dropout=HARDLY: Encoder(mask=True, dropout=dropout), sequences),
    "rotary": (Rotary, sequences),
    "rotary, complex": (lambda: Rotary("complex"), sequences),
    "gru": (lambda dropout=HARDLY: Recurrent(nn.GRU, dropout=dropout), sequences),
    "lstm both ways": (lambda: Recurrent(nn.LSTM, bidirectional=True), sequences),
    "batch norm": (normed, images),
    "windows": (windows, images),
}


def trained(
    name: str, method: str, engine: Any, layers: Sequence[Layer] = (), clip: float | None = None,
    dtype: torch.dtype = torch.float64, **more: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The model after two rounds in which nothing has been run client by client, and nobody has failed."""
    make, data = MODELS[name]
    torch.manual_seed(0)
    problem = Problem(Headed(make(**more)), [Objective(o, "cross-entropy") for o in ("a", "b")], dtype)
    algorithm = algorithms[method](lr=0.1, batch_size=4, local_steps=3, clip=clip)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = train(problem, data(), algorithm, rounds=2, engine=engine, layers=layers, keep=False)
    assert not result.summary["failures"]
    return result.model.state_dict()


@cache
def alone(name: str, method: str, guards: bool, dtype: torch.dtype) -> dict[str, Tensor]:
    """On `local`."""
    return trained(name, method, "local", dtype=dtype, **around(guards))


def around(guards: bool) -> dict[str, Any]:
    return {"layers": guarded.layers(), "clip": guarded.STEP} if guards else {}


def batched(device: str) -> dict[str, Any]:
    return {"name": "batched", "chunk": 3, "device": device, "compile": False}


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[key] - b[key]).abs().max()) for key in a)


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("guards", [False, True], ids=["plain", "clips and an attack"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_batched_equals_local_and_nothing_falls_back(name: str, method: str, guards: bool, device: str) -> None:
    """In float64, where rounding cannot be what differs."""
    local = alone(name, method, guards, torch.float64)
    found = trained(name, method, batched(device), **around(guards))
    assert distance(found, local) < 1e-11
    if guards:
        assert distance(local, alone(name, method, False, torch.float64)) > 1e-3


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("name", MODELS)
def test_float32_differs_by_rounding(name: str, device: str) -> None:
    local = alone(name, "fedcmoo", True, torch.float32)
    found = trained(name, "fedcmoo", batched(device), dtype=torch.float32, **around(True))
    assert distance(found, local) < (2e-6 if device == "cpu" else 2e-5)


@pytest.mark.parametrize("method", METHODS)
def test_each_guard_is_felt(method: str) -> None:
    """Without the attack, the clip of replies or the clip of steps, the model is another one."""
    attack, clip = guarded.layers()
    every = alone("masked", method, True, torch.float64)
    for fewer in ({"layers": [clip], "clip": guarded.STEP}, {"layers": [attack], "clip": guarded.STEP},
                  {"layers": [attack, clip]}):  # fmt: skip
        assert distance(trained("masked", method, "local", **fewer), every) > 1e-4


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["masked", "encoder, masked", "gru"])
def test_dropout_runs_together_too(name: str, method: str, device: str) -> None:
    """The same seed draws the same again; other masks than on `local`, see docs/architecture.md."""
    first, again = (trained(name, method, batched(device), dropout=0.3, **around(True)) for _ in range(2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert all(torch.isfinite(value).all() for value in first.values())
    assert distance(first, alone(name, method, True, torch.float64)) > 1e-4


def test_a_client_with_one_value_a_channel_fails_as_alone() -> None:
    """One row has no variance: torch raises an error for one client, and the others' model is the same."""
    x = np.random.default_rng(0).normal(size=(13, 5)).astype(np.float32)
    rows = [np.arange(1), np.arange(1, 6), np.arange(6, 13)]
    found = {}
    for engine in ("local", "batched"):
        torch.manual_seed(0)
        problem = Problem(nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2)), [Objective("y", "cross-entropy")])
        federation = Federation.from_arrays(x, {"y": np.arange(13) % 2}, clients=rows)
        algorithm = algorithms["fedavg"](lr=0.1, local_steps=2, batch_size=3)
        result = train(problem, federation, algorithm, rounds=2, engine=engine, keep=False)
        assert {failure["client"] for line in result.history for failure in line["failures"]} == {0}
        found[engine] = result.model.state_dict()
    for key, value in found["local"].items():
        torch.testing.assert_close(found["batched"][key], value, atol=1e-5, rtol=1e-4)
