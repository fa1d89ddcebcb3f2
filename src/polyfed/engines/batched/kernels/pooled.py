"""A narrow convolution, ReLU and pooling over squares of four as one operator of many clients.

Written out, a convolution's output is the largest thing in memory, written and then read by the pooling. Here it never
leaves the kernel: of each square the largest number is kept, and which of the four it was, a quarter of the numbers and
a byte each, from which the compiler spreads the gradient. ReLU before or after the pooling is the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.engines.batched.kernels import why_no_triton
from polyfed.engines.batched.kernels.convolution import (
    ClientConv2d,
    apart,
    convolve,
    gradients,
    has_kernels,
    joined,
    same_channels,
    sizes,
)

ZERO = 4  # no number of the square was above 0


class PooledSequential(nn.Sequential):
    """An `nn.Sequential` that takes convolution, ReLU and pooling in one step; its layers are what they were, for
    whoever calls them by themselves."""

    def forward(self, input: Tensor) -> Tensor:
        layers: list[Any] = list(self)
        i = 0
        while i < len(layers):
            if _fits(layers[i : i + 3]):
                input, i = layers[i].applied(_pooled, input), i + 3
            else:
                input, i = layers[i](input), i + 1
        return input


def replace_pooled(model: nn.Module) -> None:
    """Plain sequences that have a convolution with ReLU and pooling become `PooledSequential`."""
    for module in model.modules():
        if type(module) is nn.Sequential and any(_fits(list(module)[i : i + 3]) for i in range(len(module))):
            module.__class__ = PooledSequential


@cache
def can_pool(device: torch.device) -> bool:
    """Whether a GPU's compiler makes the right thing of the kernels: found out with small ones, once a process."""
    if why_no_triton(device):
        return False
    try:
        from polyfed.engines.batched.kernels import convolution_triton

        x, one = torch.arange(16.0, device=device).view(1, 1, 1, 4, 4), torch.ones(1, 1, 1, 1, 1, device=device)
        out, which = convolution_triton.convolve_pooled(x, one, one.new_zeros(1, 1), [0, 0])
        found = [out.flatten().tolist(), which.flatten().tolist()]
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # of a compiler, a driver, or Triton itself: whichever it is, three layers do it, too
        return False
    return found == [[5.0, 7.0, 13.0, 15.0], [3, 3, 3, 3]]


def _fits(three: list[nn.Module]) -> bool:
    kinds = [type(layer) for layer in three]
    if kinds not in ([ClientConv2d, nn.ReLU, nn.MaxPool2d], [ClientConv2d, nn.MaxPool2d, nn.ReLU]):
        return False
    pool: Any = three[1 if kinds[1] is nn.MaxPool2d else 2]
    settings = (pool.kernel_size, 2), (pool.stride, 2), (pool.padding, 0), (pool.dilation, 1)
    square = all(found in (wanted, (wanted, wanted)) for found, wanted in settings)
    return square and not pool.ceil_mode and not pool.return_indices and not any(map(_watched, three))


def _watched(layer: nn.Module) -> bool:
    """Whether somebody wants to know when a layer is called."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return any(hooks)


def _pooled(*given: Any) -> Tensor:
    # a clone, as autograd lets nobody change a view of one of two outputs in place; compiled it is no copy
    found: Tensor = convolve_pooled(*given)[0].clone()
    return found


# operators: x (clients, n, channels, h, w), w (clients, out, channels, kh, kw), b (clients, out)


@torch.library.custom_op("polyfed::convolve_pooled", mutates_args=())
def convolve_pooled(x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> tuple[Tensor, Tensor]:
    """What comes out of the pooling, and which number of its square each one was."""
    same_channels(x, w)
    if has_kernels(x, w.shape[1]):
        from polyfed.engines.batched.kernels import convolution_triton

        return convolution_triton.convolve_pooled(x.contiguous(), w.contiguous(), b.contiguous(), pad)
    full = convolve(x, w, b, pad)
    out, place = F.max_pool2d(full.flatten(0, 2), 2, return_indices=True)
    wide = full.shape[-1]
    which = (place // wide % 2 * 2 + place % wide % 2).masked_fill(out <= 0, ZERO)
    shape = *full.shape[:3], *out.shape[1:]
    return out.relu().view(shape), which.to(torch.uint8).view(shape)


def spread(d: Tensor, which: Tensor, size: list[int]) -> Tensor:
    """The gradient of the convolution's output, of this height and width: each number at its place in the square."""
    corner = torch.arange(4, dtype=torch.uint8, device=d.device).view(2, 1, 2)
    own = which.unsqueeze(-1).unsqueeze(-3) == corner
    full = torch.where(own, d.unsqueeze(-1).unsqueeze(-3), 0.0).flatten(-4, -3).flatten(-2, -1)  # (h, 2, w, 2)
    return F.pad(full, (0, size[1] - full.shape[-1], 0, size[0] - full.shape[-2]))


@convolve_pooled.register_fake
def _(x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> tuple[Tensor, Tensor]:
    same_channels(x, w)
    h, v = sizes(x, list(w.shape[3:]), pad)
    out = x.new_empty(x.shape[0], x.shape[1], w.shape[1], h // 2, v // 2)
    return out, torch.empty_like(out, dtype=torch.uint8)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, _, ctx.pad = inputs
    ctx.save_for_backward(x, w, output[1])


def _backward(ctx: Any, d: Tensor, _: Any) -> Any:
    x, w, which = ctx.saved_tensors
    full = spread(d, which, sizes(x, list(w.shape[3:]), ctx.pad))
    return gradients(ctx.needs_input_grad, x, w, full, ctx.pad)


convolve_pooled.register_autograd(_backward, setup_context=_keep)
for _device in ("cpu", "cuda"):  # the kernels are of float32: under autocast, too
    convolve_pooled.register_autocast(_device, torch.float32)


@convolve_pooled.register_vmap
def _(info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> Any:
    out, which = convolve_pooled(*joined(info, dims[:3], (x, w, b)), pad)
    return (apart(info, out), apart(info, which)), (0, 0)
