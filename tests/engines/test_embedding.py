"""Embeddings of many clients are torch's own: values, gradients, padding; sums in one order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from polyfed import Federation, Objective, Problem, train
from polyfed.algorithms import algorithms
from polyfed.engines.batched.kernels import embedding
from polyfed.engines.batched.kernels.embedding import ClientEmbedding, _marked, embed, embed_back, replace_embeddings
from polyfed.engines.batched.stacked import Stacked

GPU = ["cuda"] if torch.cuda.is_available() else []
CLIENTS, WORDS, WIDE = 3, 7, 4


def made(**settings: Any) -> tuple[nn.Module, nn.Module]:
    """torch's, and the one that takes its place."""
    own, other = nn.Embedding(WORDS, WIDE, **settings), nn.Embedding(WORDS, WIDE, **settings)
    replace_embeddings(other, operators=True)
    return own, other


def some(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, WORDS, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def tables() -> Tensor:
    """Stacked, as they lie among other parameters."""
    g = torch.Generator().manual_seed(1)
    many = torch.randn(CLIENTS, WORDS * WIDE + 5, dtype=torch.float64, generator=g)
    return many[:, 2:-3].view(CLIENTS, WORDS, WIDE).requires_grad_()


def outputs(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def one(table: Tensor, words: Tensor) -> Tensor:
        found: Tensor = functional_call(module, {"weight": table}, (words,))
        return found.sin()

    return one


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("shape", [(), (5,), (5, 9)])
@pytest.mark.parametrize("padding", [None, 0, -1])
def test_each_client_has_its_own_table(padding: int | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    own, other = made(padding_idx=padding)
    assert isinstance(other, ClientEmbedding)
    table, words = tables(), some(CLIENTS, *shape, dtype=dtype)
    found = vmap(outputs(other))(table, words)
    (grad,) = torch.autograd.grad(found.cumsum(0).sum(), table)
    wanted = torch.stack([outputs(own)(table[c], words[c]) for c in range(CLIENTS)])
    assert torch.equal(found, wanted)
    torch.testing.assert_close(grad, torch.autograd.grad(wanted.cumsum(0).sum(), table)[0])
    if padding is not None:
        assert not grad[:, padding].any()


def test_words_that_all_clients_share() -> None:
    """Positions, for instance."""
    own, other = made()
    table, words = tables(), torch.arange(WORDS)
    found = vmap(outputs(other), in_dims=(0, None))(table, words)
    wanted = torch.stack([outputs(own)(table[c], words) for c in range(CLIENTS)])
    assert torch.equal(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), table)[0], torch.autograd.grad(wanted.sum(), table)[0])


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, device: str) -> None:
    """600 times 1 is 256 in bfloat16's own sums, where 1 more is lost in rounding."""
    words = torch.zeros(2, 600, dtype=torch.int64, device=device)
    grad = embed_back(torch.ones(2, 600, WIDE, dtype=dtype, device=device), words, WORDS, -1)
    assert grad.dtype == dtype
    assert (grad[:, 0] == 600).all()
    assert not grad[:, 1:].any()


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_sums_come_in_one_order(device: str) -> None:
    """The same bits in every run, with few words and with many."""
    for rows in (20, 5000):
        words, d = some(CLIENTS, rows).to(device), torch.randn(CLIENTS, rows, WIDE, device=device)
        first = embed_back(d, words, WORDS, 0)
        assert all(torch.equal(embed_back(d, words, WORDS, 0), first) for _ in range(5))
        exact = embed_back(d.cpu().double(), words.cpu(), WORDS, 0)
        torch.testing.assert_close(first.cpu().double(), exact, atol=1e-3, rtol=1e-5)


def test_clients_that_are_too_large_for_one_call_go_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    words, d = some(CLIENTS, 5, 9), torch.randn(CLIENTS, 5, 9, WIDE)
    whole = embed_back(d, words, WORDS, 1)
    for most in (1, 2 * 45 * (WIDE + 31)):  # one client at a time; two, and the last
        monkeypatch.setattr(embedding, "MOST", most)
        assert torch.equal(embed_back(d, words, WORDS, 1), whole)


def test_what_is_not_plain_or_not_trained_stays_as_it_is() -> None:
    class Own(nn.Embedding):
        pass

    kinds: list[dict[str, Any]] = [{"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}]
    frozen = nn.Embedding(WORDS, WIDE)
    frozen.weight.requires_grad_(False)
    model = nn.ModuleList([*(nn.Embedding(WORDS, WIDE, **more) for more in kinds), frozen, Own(WORDS, WIDE)])
    for operators in (True, False):
        replace_embeddings(model, operators)
        assert [type(m) for m in model] == [nn.Embedding] * 4 + [Own]


@pytest.mark.parametrize("bad", [WORDS, -1])
def test_a_word_that_is_not_there_is_refused(bad: int) -> None:
    """And is no word of the next client, nor one from the end."""
    words = some(CLIENTS, 5)
    words[0, 3] = bad
    with pytest.raises(ValueError, match="a word is not in the vocabulary"):
        embed(tables(), words, -1)


@pytest.mark.parametrize("bad", [WORDS, -1])
def test_on_a_gpu_its_row_is_not_a_number_and_other_gradients_are_as_without_it(bad: int) -> None:
    """An index that is not there would be the end of the process."""
    table, words = tables().detach(), some(CLIENTS, 5)
    wrong = words.clone()
    wrong[0, 3] = bad
    found = _marked(table, torch.arange(CLIENTS).view(-1, 1), wrong)
    assert found[0, 3].isnan().all()
    found[0, 3] = table[0, words[0, 3]]
    assert torch.equal(found, table[torch.arange(CLIENTS).view(-1, 1), words])
    d = torch.ones(CLIENTS, 5, WIDE)
    without = d.clone()
    without[0, 3] = 0
    assert torch.equal(embed_back(d, wrong, WORDS, -1), embed_back(without, words, WORDS, -1))


# in training


class Reader(nn.Module):
    """Words and their places; the mean, or what a recurrent layer that vmap has no rule for makes of them."""

    def __init__(self, recurrent: bool = False, **settings: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE, padding_idx=0, **settings), nn.Embedding(5, WIDE)
        self.layer = nn.RNN(WIDE, WIDE, batch_first=True) if recurrent else None
        self.head = nn.Linear(WIDE, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(5, device=x.device))
        found: Tensor = self.head(F.gelu(h).mean(1) if self.layer is None else self.layer(h)[0][:, -1])
        return found


def trained(engine: Any, method: str = "fedavg", words: Any = None, **settings: Any) -> Any:
    x = np.random.default_rng(0).integers(0, WORDS, (24, 5)) if words is None else words
    torch.manual_seed(0)
    problem = Problem(Reader(**settings), [Objective("y", "cross-entropy")], torch.float64)
    federation = Federation.from_arrays(x, x[:, 0] % 2, clients=np.split(np.arange(24), [3, 10]))
    algorithm = algorithms[method](lr=0.5, local_steps=3, batch_size=4)
    return train(problem, federation, algorithm, rounds=2, engine=engine, keep=False)


def agree(mine: Any, wanted: Any) -> None:
    for name, value in wanted.model.state_dict().items():
        torch.testing.assert_close(mine.model.state_dict()[name], value, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("recurrent", [False, True])
def test_batched_equals_local_with_padding(recurrent: bool) -> None:
    local, batched = (trained(engine, recurrent=recurrent) for engine in ("local", "batched"))
    agree(batched, local)


@pytest.mark.parametrize("device", ["cpu", *GPU])
def test_a_client_with_a_word_that_is_not_there_fails_alone(device: str) -> None:
    """On a GPU its words are NaN, and it is dropped for an update that is not finite."""
    words = np.random.default_rng(0).integers(0, WORDS, (24, 5))
    words[4, 2] = WORDS  # of the second client
    local = trained("local", words=words)
    says = "runs client by client: ValueError: a word is not in the vocabulary"
    with pytest.warns(RuntimeWarning, match=says) if device == "cpu" else nullcontext():
        batched = trained({"name": "batched", "device": device}, words=words)
    failed = [[{f["client"] for f in line["failures"]} for line in r.history] for r in (local, batched)]
    assert failed[0] == failed[1]
    assert {1} in failed[0]
    agree(batched, local)


def test_words_that_are_counted_are_so_without_padded_rows() -> None:
    """A gradient by frequency would see the rows that fill a batch up: clients go one by one."""
    local = trained("local", scale_grad_by_freq=True)
    with pytest.warns(RuntimeWarning, match="runs client by client: the embedding 'words' scales its gradient"):
        agree(trained("batched", scale_grad_by_freq=True), local)


@pytest.mark.parametrize("method", ["fedavg", "fedcmoo"])
def test_compiled_gradients_are_the_operators(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compiler takes a step apart for a GPU, without the code it would write: nothing is added atomically."""
    from torch._dynamo.backends.common import aot_autograd  # seconds, which only this test needs
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._inductor.decomposition import select_decomp_table

    found: list[str] = []

    def seen(graph: Any, inputs: Any) -> Any:
        found.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=seen, bw_compiler=seen, decompositions=select_decomp_table())
    original, init = torch.compile, Stacked.__init__
    monkeypatch.setattr(torch, "compile", lambda f: original(f, backend=backend))
    monkeypatch.setattr(Stacked, "__init__", lambda s, problem, device, _, *more: init(s, problem, device, True, *more))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        batched = trained("batched", method)
    agree(batched, trained("local", method))
    assert found.count("polyfed.embed_back.default") >= 2
    assert not any("index_put" in name or "embedding_dense_backward" in name for name in found)
