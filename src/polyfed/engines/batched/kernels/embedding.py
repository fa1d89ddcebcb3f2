"""Embeddings of many clients at once, each with a table of its own: a gather, and gradients by sorted segments.

torch's own rule under vmap copies the tables, and knows the padding of the first client's alone; compiled, its gradient
adds atomically, in another order in every run. Here a word's place is client x vocabulary + word; the places are
sorted, and each one's rows summed in a fixed order. On a GPU torch's kernel for one large table does not serve: from
torch 2.11 on it adds atomically where few words come often (pytorch/pytorch#170589), and with 1,025 to 3,072 words it
may read the wrong ones (pytorch/pytorch#187687).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.core.segments import segment_sums

MOST = 2**31  # numbers in one call of torch's kernel, which counts them in 32 bits


class ClientEmbedding(nn.Embedding):
    """An `nn.Embedding` whose stacked form is `embed`."""

    def forward(self, input: Tensor) -> Tensor:
        padding = -1 if self.padding_idx is None else self.padding_idx
        found: Tensor = embed(self.weight.unsqueeze(0), input.unsqueeze(0), padding)
        return found.squeeze(0)


class PaddedEmbedding(nn.Embedding):
    """An `nn.Embedding` of torch's own operators, whose padding has no gradient at any client."""

    def forward(self, input: Tensor) -> Tensor:
        assert self.padding_idx is not None
        padding = torch.arange(self.num_embeddings, device=input.device) == self.padding_idx
        return F.embedding(input, torch.where(padding.unsqueeze(1), self.weight.detach(), self.weight))


def replace_embeddings(model: nn.Module, operators: bool) -> None:
    """Plain embeddings that are trained get a stacked form; a frozen table exists once, and stays as it is.

    operators: whether ours can be used; not so below a gradient that is taken inside of vmap.
    """
    for module in model.modules():
        if type(module) is nn.Embedding and module.weight.requires_grad and _plain(module):
            if operators:
                module.__class__ = ClientEmbedding
            elif module.padding_idx is not None:
                module.__class__ = PaddedEmbedding


def counts_words(module: nn.Module) -> bool:
    """Whether a module divides its gradient by how often a word comes in a batch, padding included."""
    return isinstance(module, nn.Embedding) and module.scale_grad_by_freq and module.weight.requires_grad


def _plain(module: nn.Embedding) -> bool:
    return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse


# operators: table (clients, vocabulary, width), words (clients, ...), d (clients, ..., width)


@torch.library.custom_op("polyfed::embed", mutates_args=())
def embed(table: Tensor, words: Tensor, padding: int) -> Tensor:
    """Every client's words in its own table, which may be a view: nothing but the rows asked for is copied."""
    clients = torch.arange(len(table), device=words.device).view(-1, *(1,) * (words.dim() - 1))
    if words.device.type != "cpu":
        return _marked(table, clients, words)
    words = torch.where(words < 0, table.shape[1], words)  # refused as torch's refuses it, not counted from the end
    try:
        return table[clients, words]
    except IndexError as error:
        raise ValueError(f"a word is not in the vocabulary: {error}") from None


def _marked(table: Tensor, clients: Tensor, words: Tensor) -> Tensor:
    """The same, NaN where there is no such word: its client alone has failed. A GPU would be lost to the process."""
    missing = _missing(words, table.shape[1])
    return table[clients, words.masked_fill(missing, 0)].masked_fill_(missing.unsqueeze(-1), torch.nan)


def _missing(words: Tensor, vocabulary: int) -> Tensor:
    return (words < 0) | (words >= vocabulary)


@torch.library.custom_op("polyfed::embed_back", mutates_args=())
def embed_back(d: Tensor, words: Tensor, vocabulary: int, padding: int) -> Tensor:
    """The gradients of the tables (clients, vocabulary, width), summed in float32 at least; that of padding is 0."""
    a_client = max(words[0].numel(), vocabulary) * (d.shape[-1] + 31)  # the kernel fills its warps
    some = max(1, MOST // a_client)
    parts = zip(torch.split(d, some), torch.split(words, some), strict=True)
    found = [_sums(*part, vocabulary, padding) for part in parts]
    return found[0] if len(found) == 1 else torch.cat(found)


def _sums(d: Tensor, words: Tensor, vocabulary: int, padding: int) -> Tensor:
    """One large table of all clients' words, and a row after it for the padding of all of them."""
    clients, last = len(d), len(d) * vocabulary
    begins = torch.arange(0, last, vocabulary, device=words.device).view(-1, *(1,) * (words.dim() - 1))
    places = torch.where((words == padding) | _missing(words, vocabulary), last, words + begins)
    exact = d.to(torch.promote_types(d.dtype, torch.float32))
    if d.device.type == "cpu":
        sums: Tensor = torch.ops.aten.embedding_dense_backward(exact, places, last + 1, last, False)[:last]
    else:
        sums = segment_sums(exact.reshape(-1, exact.shape[-1]), places.reshape(-1), last)
    return sums.view(clients, vocabulary, -1).to(d.dtype)


@embed.register_fake
def _(table: Tensor, words: Tensor, padding: int) -> Tensor:
    return table.new_empty(*words.shape, table.shape[2])


@embed_back.register_fake
def _(d: Tensor, words: Tensor, vocabulary: int, padding: int) -> Tensor:
    return d.new_empty(d.shape[0], vocabulary, d.shape[-1])


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    table, words, ctx.padding = inputs
    ctx.vocabulary = table.shape[1]
    ctx.save_for_backward(words)


def _backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None]:
    return embed_back(d, *ctx.saved_tensors, ctx.vocabulary, ctx.padding), None, None


embed.register_autograd(_backward, setup_context=_keep)


def _register(operator: Any) -> None:
    """Under vmap, its dimension is joined with that of the clients; numbers stay as they are."""

    def rule(info: Any, dims: Any, first: Tensor, second: Tensor, *numbers: int) -> tuple[Tensor, int]:
        many = [
            (t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)).flatten(0, 1)
            for t, d in zip((first, second), dims[:2], strict=True)
        ]
        found: Tensor = operator(*many, *numbers)
        return found.view(info.batch_size, -1, *found.shape[1:]), 0

    operator.register_vmap(rule)


for _operator in (embed, embed_back):
    _register(_operator)
