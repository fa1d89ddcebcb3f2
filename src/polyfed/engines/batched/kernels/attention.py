"""Attention of many clients at once: their batches are one batch of a fused kernel.

torch's own rule for `scaled_dot_product_attention` under vmap takes the kernel apart, and its backward then fails on a
GPU. Here clients are folded into the batch, forward and backward: of short sequences for a kernel of our own, else for
whichever kernel torch would choose for one client. With dropout the product is written out, as no kernel draws each
client's own mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from polyfed.engines.batched.kernels import why_no_triton

SHORT = 256  # words: a sequence whose scores may be written out
WHOLE = 128  # words: all keys of a head fit into one block of our kernel
WIDTHS = (32, 64)  # of a head, with which that kernel was found to be the faster one
scaled_dot_product_attention = F.scaled_dot_product_attention  # torch's, whoever replaces it later


@contextmanager
def stacked_attention() -> Iterator[None]:
    """Inside, `torch.nn.functional` has the attention of stacked clients: around a compiled program, not in it.

    An encoder's own kernel for evaluation is not used, as vmap has no rule for it.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    F.scaled_dot_product_attention = _attend
    try:
        yield
    finally:
        F.scaled_dot_product_attention = scaled_dot_product_attention
        torch.backends.mha.set_fastpath_enabled(fast)


class StackedAttention(TorchFunctionMode):
    """Inside, calls of torch's function by those who imported it by its name are those of stacked clients, too.

    Not for a compiled program, which cannot follow such a mode with sizes that vary.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_attend if func is scaled_dot_product_attention else func)(*args, **(kwargs or {}))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As torch's, of one client under vmap."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # which torch asks about below vmap, where our operator is already gone
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        attn_mask = attn_mask.to(dtype) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
    if dropout_p > 0:
        return _written_out(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    alone = query.dim() == 2  # a sequence without a batch to fold into
    q, k, v = (t.unsqueeze(0) if alone else t for t in (query, key, value))
    found: Tensor = attend(q, k, v, attn_mask, is_causal, scale, enable_gqa)
    return found.squeeze(0) if alone else found


def _written_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    """The product itself: softmax(q k^T scale + mask), dropout, v."""
    if gqa:  # a key serves several queries
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        mask = seen if mask is None else mask
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # who sees nobody should not become NaN
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    return (F.dropout(weights, dropout) if dropout else weights) @ v


# operator: as torch's, without dropout; only its rule under vmap is new


@torch.library.custom_op("polyfed::attend", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    """Attention of a client alone."""
    return _torchs(q, k, v, mask, causal, scale, gqa).contiguous()


def _torchs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: Any, gqa: bool) -> Tensor:
    return scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)


def _whole(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: Any, gqa: bool) -> Tensor:
    """By a fused kernel; but of float32 with TF32 allowed, and short sequences, written out: torch's kernel for float32
    is slower than two products on tensor cores (benchmarks/NOTES.md)."""
    if q.is_cuda and not gqa and fits(q, k, v, mask) and not why_no_triton(q.device):
        found: Tensor = attend_whole(q, k, v, mask, causal, 1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        return found
    short = q.shape[-2] * k.shape[-2] <= SHORT**2
    if q.is_cuda and q.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 and short:
        return _written_out(q, k, v, mask, 0.0, causal, scale, gqa)
    return _torchs(q, k, v, mask, causal, scale, gqa)


def fits(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Whether our own kernel is right for it: short sequences in half precision.

    torch would take one row of keys for many of queries; the kernel would read beyond it.
    """
    half = q.dtype in (torch.bfloat16, torch.float16) and q.dtype == k.dtype == v.dtype
    shape = q.dim() == 4 and q.shape[3] in WIDTHS and q.shape[:2] == k.shape[:2] and k.shape == v.shape
    short = shape and q.shape[3] == k.shape[3] and max(q.shape[2], k.shape[2]) <= WHOLE
    return half and short and (mask is None or not mask.requires_grad)


# operator: short sequences, (rows, heads, words, width) each; the output and the gradients lie word by word in memory


@torch.library.custom_op("polyfed::attend_whole", mutates_args=())
def attend_whole(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Attention whose scores never leave the kernel."""
    from polyfed.engines.batched.kernels import attention_triton

    out = _by_words(q)
    attention_triton.attend(_dense(q), _dense(k), _dense(v), mask, out, causal, scale)
    return out


@torch.library.custom_op("polyfed::attend_whole_grad", mutates_args=())
def attend_whole_grad(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, d: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, where d is that of the output."""
    from polyfed.engines.batched.kernels import attention_triton

    found = _by_words(q), _by_words(k), _by_words(v)
    attention_triton.attend_grad(_dense(q), _dense(k), _dense(v), mask, _dense(d), found, causal, scale)
    return found


def _dense(t: Tensor) -> Tensor:
    """With the numbers of a head beside each other."""
    return t if t.stride(-1) == 1 else t.contiguous()


def _by_words(like: Tensor) -> Tensor:
    """Room for a tensor of the same shape where the heads of a word lie beside each other."""
    return like.new_empty([like.shape[i] for i in (0, 2, 1, 3)]).transpose(1, 2)


@attend_whole.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    return _by_words(q)


@attend_whole_grad.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, d: Tensor, causal: bool, scale: float) -> Any:
    return _by_words(q), _by_words(k), _by_words(v)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask)


def _backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, mask = ctx.saved_tensors
    return (*attend_whole_grad(q, k, v, mask, d, ctx.causal, ctx.scale), None, None, None)


attend_whole.register_autograd(_backward, setup_context=_keep)


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


@attend.register_vmap
def _(
    info: Any, dims: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: Any, gqa: bool
) -> tuple[Tensor, int]:
    """Clients (vmap's dimension) become part of the batch, of plain tensors, whose gradient torch knows."""
    clients = int(info.batch_size)
    q, k, v = (_folded(t, d, clients) for t, d in zip((q, k, v), dims[:3], strict=True))
    if mask is not None:
        mask = _folded_mask(mask, dims[3], clients, len(q) // clients, q.dim())
    out = _whole(q, k, v, mask, causal, scale, gqa)
    return out.view(clients, -1, *out.shape[1:]), 0


def _folded(t: Tensor, d: int | None, clients: int) -> Tensor:
    """(clients x batch, ...)."""
    t = t.movedim(d, 0) if d is not None else t.expand(clients, *t.shape)
    return t.flatten(0, 1)


def _folded_mask(mask: Tensor, d: int | None, clients: int, batch: int, rank: int) -> Tensor:
    """A mask that fits a folded batch: one for everybody stays as small as it is."""
    if d is None and (mask.dim() < rank or mask.shape[0] == 1):
        return mask
    mask = mask.movedim(d, 0) if d is not None else mask.expand(clients, *mask.shape)
    mask = mask.reshape(clients, *(1,) * (rank + 1 - mask.dim()), *mask.shape[1:])
    return mask.expand(clients, batch, *mask.shape[2:]).flatten(0, 1)
