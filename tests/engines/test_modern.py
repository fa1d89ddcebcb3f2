"""Models as people train them today run as one program, and give what one client after another gives."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

from polyfed import Federation, Layer, Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.core.layer import Outgoing
from polyfed.engines.batched.kernels.attention import StackedAttention
from polyfed.layers.attacks import Misreport

GPU = ["cuda"] if torch.cuda.is_available() else []
WORDS, LENGTH, WIDE = 11, 7, 8
SIZES = (2, 6, 10, 14)  # rows of clients, for batches of 4


def sequences() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, (sum(SIZES), LENGTH))
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
        self.words, self.norm = nn.Embedding(WORDS, WIDE), nn.LayerNorm(WIDE)
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
    """torch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE)
        self.layer = nn.TransformerEncoderLayer(WIDE, 2, 16, 0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.words(x))
        return found.mean(1)


class Rotary(nn.Module):
    """RMSNorm, rotary positions in a buffer, and words whose embedding is also what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDE), nn.RMSNorm(WIDE)
        angles = torch.arange(LENGTH)[:, None] / 10 ** (torch.arange(WIDE // 2) / 4)
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles).real)
        self.down = nn.Linear(WORDS, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.words(x))
        left, right = h.chunk(2, -1)
        turn: Any = self.turn
        h = torch.cat([left * turn, right * turn], -1)
        found: Tensor = self.down((h @ self.words.weight.T).mean(1))  # tied
        return found


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
    """Depthwise, dilated and strided convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, dilation=2), nn.ReLU(),
        nn.Conv2d(6, 4, 1, stride=2), nn.Flatten(), nn.Linear(16, WIDE),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Federation]]] = {
    "causal": (Attention, sequences),
    "masked": (lambda: Attention(mask=True), sequences),
    "shared keys": (lambda: Attention(shared=True), sequences),
    "imported": (Imported, sequences),
    "twice": (Twice, sequences),
    "encoder": (Encoder, sequences),
    "rotary": (Rotary, sequences),
    "gru": (lambda: Recurrent(nn.GRU), sequences),
    "lstm both ways": (lambda: Recurrent(nn.LSTM, bidirectional=True), sequences),
    "batch norm": (normed, images),
    "windows": (windows, images),
}


class Clip(Layer):
    """Updates of at most this norm."""

    def __init__(self, norm: float) -> None:
        self.norm = norm

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        found = {name: out.arrays[name] for name in out.named("update")}
        return {**out.arrays, **{n: a * torch.clamp(self.norm / a.norm(), max=1.0) for n, a in found.items()}}


def trained(name: str, method: str, engine: Any, rounds: int = 2, **more: Any) -> dict[str, Tensor]:
    make, data = MODELS[name]
    torch.manual_seed(0)
    problem = Problem(Headed(make()), [Objective(o, "cross-entropy") for o in ("a", "b")])
    algorithm = algorithms[method](lr=0.1, batch_size=4, **({} if method == "fmgda" else {"local_steps": 3}))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*runs client by client")
        result = train(problem, data(), algorithm, rounds=rounds, engine=engine, keep=False, **more)
    assert not result.summary["failures"]
    return result.model.state_dict()


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("method", ["fedavg", "fsmgda", "fedcmoo"])
@pytest.mark.parametrize("name", MODELS)
def test_batched_equals_local_and_nothing_falls_back(name: str, method: str, device: str) -> None:
    local = trained(name, method, "local")
    batched = trained(name, method, {"name": "batched", "chunk": 3, "device": device, "compile": False})
    for key, value in local.items():
        torch.testing.assert_close(batched[key], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["masked", "batch norm"])
def test_clips_and_attacks_around_them_do_not_matter(name: str) -> None:
    layers = [Misreport(clients=[1], factor=5.0, bias=0.5), Clip(0.2)]
    local, batched = (trained(name, "fedavg", engine, layers=layers, guard="off") for engine in ("local", "batched"))
    honest = trained(name, "fedavg", "local", guard="off")
    for key, value in local.items():
        torch.testing.assert_close(batched[key], value, atol=1e-5, rtol=1e-4)
    assert any(not torch.allclose(honest[key], value, atol=1e-4) for key, value in local.items())


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
