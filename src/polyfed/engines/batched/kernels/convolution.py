"""Convolutions of many clients at once, each with weights of its own: one Triton kernel instead of grouped cuDNN ones.

Stacked, such a layer is a grouped convolution, for which cuDNN has kernels only where groups are wide: narrow ones run
group by group, and a single input channel runs as a depthwise convolution. Here a client's layer is a product of its
weights (out, k) with its patches (k, positions), k = (channel, row, column) of the window; the patches are gathered on
the fly and never written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import grad

from polyfed.engines.batched.kernels import why_no_triton

NARROW = 32  # with fewer channels on one side, or small windows, the kernels here are faster (benchmarks/NOTES.md)
WINDOW = 512  # entries of a window from which on cuDNN's are


class ClientConv2d(nn.Conv2d):
    """A `Conv2d` whose stacked form is `convolve`."""

    def forward(self, x: Tensor) -> Tensor:
        return self.applied(convolve, x)

    def applied(self, operator: Callable[..., Tensor], x: Tensor) -> Tensor:
        """What an operator of many clients makes of one client's images, or of one image."""
        pad = [int(p) for p in self.padding]
        bias = self.bias if self.bias is not None else self.weight.new_zeros(self.out_channels)
        alone = x.dim() == 3
        x = x.unsqueeze(0) if alone else x
        out = operator(x.unsqueeze(0), self.weight.unsqueeze(0), bias.unsqueeze(0), pad).squeeze(0)
        if torch.is_autocast_enabled(x.device.type):  # the kernels are of float32, what comes after need not be
            out = out.to(torch.get_autocast_dtype(x.device.type))
        return out.squeeze(0) if alone else out


def replace_convolutions(model: nn.Module) -> None:
    """Narrow, plain convolutions of a module become `ClientConv2d`; the others stay as they are."""
    for module in model.modules():
        if type(module) is nn.Conv2d and _fits(module):
            module.__class__ = ClientConv2d


def _fits(conv: nn.Conv2d) -> bool:
    plain = conv.stride == conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    inside = not isinstance(conv.padding, str) and all(
        p < k for p, k in zip(conv.padding, conv.kernel_size, strict=True)
    )
    entries = conv.in_channels * math.prod(conv.kernel_size)
    small = min(conv.in_channels, conv.out_channels) <= NARROW and max(conv.kernel_size) <= 32
    return plain and inside and small and entries < WINDOW


# operators: x (clients, n, channels, h, w), w (clients, out, channels, kh, kw), b (clients, out)


@torch.library.custom_op("polyfed::convolve", mutates_args=())
def convolve(x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> Tensor:
    """Every client's images under its own weights."""
    same_channels(x, w)
    if has_kernels(x, w.shape[1]):
        from polyfed.engines.batched.kernels import convolution_triton

        return convolution_triton.convolve(x.contiguous(), w.contiguous(), b.contiguous(), pad)
    images = x.transpose(0, 1).flatten(1, 2)
    out = F.conv2d(images, w.flatten(0, 1), b.flatten(), padding=pad, groups=len(x))
    return out.view(len(out), *w.shape[:2], *out.shape[2:]).transpose(0, 1).contiguous()


@torch.library.custom_op("polyfed::convolve_weight_grad", mutates_args=())
def weight_grad(x: Tensor, d: Tensor, kernel: list[int], pad: list[int]) -> tuple[Tensor, Tensor]:
    """The gradients of weights and biases, where d (clients, n, out, h, w) is that of the output."""
    if has_kernels(x, d.shape[2]):
        from polyfed.engines.batched.kernels import convolution_triton

        return convolution_triton.weight_grad(x.contiguous(), d.contiguous(), kernel, pad)
    images, many = x.transpose(0, 1).flatten(1, 2), d.transpose(0, 1).flatten(1, 2)
    shape = [len(x) * d.shape[2], x.shape[2], *kernel]
    out = grad.conv2d_weight(images, shape, many, padding=pad, groups=len(x))  # type: ignore[no-untyped-call]  # torch has no types here
    return out.reshape(len(x), d.shape[2], *shape[1:]), d.sum((1, 3, 4))


def has_kernels(x: Tensor, out: int) -> bool:
    """Whether the kernels do it: float32 on a GPU that has them, and clients small enough for 32-bit offsets."""
    grown = (x.shape[3] + 32) * (x.shape[4] + 32)  # an output is larger by less than the window
    small = x.shape[1] * max(x.shape[2], out) * grown < 2**31
    return x.is_cuda and x.dtype == torch.float32 and small and not why_no_triton(x.device)


def same_channels(x: Tensor, w: Tensor) -> None:
    """Refuse images of other channels than the weights', as torch does: a kernel would read on in memory."""
    if x.shape[2] != w.shape[2]:
        raise ValueError(f"images should have the {w.shape[2]} channels of the weights. Found {x.shape[2]}")


def sizes(x: Tensor, kernel: list[int], pad: list[int]) -> list[int]:
    """Height and width of the convolution's output."""
    return [x.shape[3 + i] + 2 * pad[i] - kernel[i] + 1 for i in (0, 1)]


@convolve.register_fake
def _(x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> Tensor:
    same_channels(x, w)
    return x.new_empty(x.shape[0], x.shape[1], w.shape[1], *sizes(x, list(w.shape[3:]), pad))


@weight_grad.register_fake
def _(x: Tensor, d: Tensor, kernel: list[int], pad: list[int]) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x), d.shape[2], x.shape[2], *kernel), x.new_empty(len(x), d.shape[2])


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, _, ctx.pad = inputs
    ctx.save_for_backward(x, w)


def _backward(ctx: Any, d: Tensor) -> Any:
    x, w = ctx.saved_tensors
    return gradients(ctx.needs_input_grad, x, w, d, ctx.pad)


def gradients(needed: Sequence[bool], x: Tensor, w: Tensor, d: Tensor, pad: list[int]) -> Any:
    """Those of the images, the weights and the biases, as far as they are needed, where d is that of the output."""
    dx = dw = db = None
    if any(needed[1:3]):
        dw, db = weight_grad(x, d, list(w.shape[3:]), pad)
    if needed[0]:
        dx = _input_grad(d, w, pad)
    return dx, dw, db, None


def _input_grad(d: Tensor, w: Tensor, pad: list[int]) -> Tensor:
    """The gradient of the images: the convolution of d with the mirrored weights."""
    around = [k - 1 - p for k, p in zip(w.shape[3:], pad, strict=True)]
    found: Tensor = convolve(d, w.transpose(1, 2).flip(3, 4), w.new_zeros(len(w), w.shape[2]), around)
    return found


convolve.register_autograd(_backward, setup_context=_keep)
for _device in ("cpu", "cuda"):  # the kernels are of float32: under autocast, too
    convolve.register_autocast(_device, torch.float32)


def joined(info: Any, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """vmap's dimension in front, joined with that of the clients."""
    many = [
        t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
        for t, d in zip(tensors, dims, strict=True)
    ]
    return [t.flatten(0, 1) for t in many]


def apart(info: Any, t: Tensor) -> Tensor:
    return t.view(info.batch_size, -1, *t.shape[1:])


@convolve.register_vmap
def _(info: Any, dims: Any, x: Tensor, w: Tensor, b: Tensor, pad: list[int]) -> tuple[Tensor, int]:
    return apart(info, convolve(*joined(info, dims[:3], (x, w, b)), pad)), 0


@weight_grad.register_vmap
def _(info: Any, dims: Any, x: Tensor, d: Tensor, kernel: list[int], pad: list[int]) -> Any:
    dw, db = weight_grad(*joined(info, dims[:2], (x, d)), kernel, pad)
    return (apart(info, dw), apart(info, db)), (0, 0)
