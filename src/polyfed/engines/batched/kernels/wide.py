"""Wide convolutions of many clients at once, each with weights of its own: one product with gathered windows.

Stacked, such a layer is a grouped convolution, which cuDNN does group by group in most cases. Here images lie channel
last, (clients, rows, height, width, channels), and are padded where they are written, so that a client's layer is a
product of its windows (positions, k) with its weights (k, out).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.engines.batched.kernels import why_no_triton
from polyfed.engines.batched.kernels.convolution import apart, joined

WIDE = 16  # channels


class WideConv2d(nn.Conv2d):
    """A `Conv2d` whose stacked form is `windows_times`."""

    def forward(self, x: Tensor) -> Tensor:
        alone = x.dim() == 3
        up, along = (int(p) for p in self.padding)
        dtype = _dtype(x)
        image = _nearest((x.unsqueeze(0) if alone else x).to(dtype).permute(0, 2, 3, 1))
        image = F.pad(image, (0, 0, along, along, up, up)).unsqueeze(0).contiguous()
        weight = _nearest(self.weight.to(dtype).permute(0, 2, 3, 1)).unsqueeze(0).contiguous()
        out: Tensor = windows_times(image, weight, int(self.stride[0]), [up, along], False).squeeze(0)
        out = (out if self.bias is None else out + self.bias.to(dtype)).permute(0, 3, 1, 2)
        out = out.contiguous()  # some functions of torch ask which way images lie, which vmap cannot answer
        return out.squeeze(0) if alone else out


def replace_wide(model: nn.Module) -> None:
    """Wide, plain convolutions of a module become `WideConv2d`; the others stay as they are."""
    for module in model.modules():
        if type(module) is nn.Conv2d and _fits(module):
            module.__class__ = WideConv2d


def _fits(conv: nn.Conv2d) -> bool:
    plain = conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    inside = not isinstance(conv.padding, str) and all(
        p < k for p, k in zip(conv.padding, conv.kernel_size, strict=True)
    )
    wide = min(conv.in_channels, conv.out_channels) >= WIDE and conv.in_channels % 16 == conv.out_channels % 16 == 0
    return plain and inside and wide and conv.stride[0] == conv.stride[1]


def _dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _nearest(x: Tensor) -> Tensor:
    """The nearest TF32 number, where products are of those: the tensor cores would cut the last 13 bits off."""
    if not (x.is_cuda and x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32):
        return x
    return x + short_of(x.detach())  # as a sum, so that its gradient is 1


def short_of(x: Tensor) -> Tensor:
    """What a number lacks to the nearest one of 11 bits (Dekker's splitting); nothing where it is too large."""
    larger = x * 8193.0  # 2^13 + 1
    near = larger - (larger - x)
    return torch.where(near.abs() < torch.inf, near - x, 0.0)


# operators: x (clients, rows, height, width, channels) padded, w (clients, out, kh, kw, channels)


@torch.library.custom_op("polyfed::windows_times", mutates_args=())
def windows_times(x: Tensor, w: Tensor, stride: int, pad: list[int], mirrored: bool) -> Tensor:
    """Every client's windows under its own weights (clients, rows, height, width, out).

    Args:
        x: images.
        w: weights.
        stride: from a window to the next.
        pad: how x was padded.
        mirrored: with `mirror(w)` in place of w, and without making it.
    """
    if _kernels(x, _out(w, mirrored)):
        from polyfed.engines.batched.kernels import wide_triton

        return wide_triton.windows_times(x.contiguous(), w.contiguous(), stride, mirrored)
    w = mirror(w) if mirrored else w
    images, weights = x.permute(1, 0, 4, 2, 3).flatten(1, 2), w.permute(0, 1, 4, 2, 3).flatten(0, 1)
    out = F.conv2d(images, weights, stride=stride, groups=len(x))
    return out.view(len(out), len(x), -1, *out.shape[2:]).permute(1, 0, 3, 4, 2).contiguous()


@torch.library.custom_op("polyfed::windows_grad", mutates_args=())
def windows_grad(x: Tensor, d: Tensor, kernel: list[int], stride: int) -> Tensor:
    """The weights' gradients, where d (clients, rows, height, width, out) is that of the output; of float32 sums."""
    if _kernels(x, d.shape[-1]):
        from polyfed.engines.batched.kernels import wide_triton

        return wide_triton.windows_grad(x.contiguous(), d.contiguous(), kernel, stride)
    h, v = d.shape[2:4]
    taps = [
        torch.einsum("gnhwo,gnhwc->goc", d, x[:, :, a : a + h * stride : stride, b : b + v * stride : stride])
        for a in range(kernel[0])
        for b in range(kernel[1])
    ]
    return torch.stack(taps, 2).view(len(x), d.shape[-1], *kernel, x.shape[-1])


def mirror(w: Tensor) -> Tensor:
    """The weights of a layer's input gradient, as a product with windows of the output's."""
    return w.flip(2, 3).transpose(1, 4)


def _out(w: Tensor, mirrored: bool) -> int:
    return w.shape[4 if mirrored else 1]


def _kernels(x: Tensor, out: int) -> bool:
    return x.is_cuda and can_take(x, out) and not why_no_triton(x.device)


def can_take(x: Tensor, out: int) -> bool:
    """Whether the kernels are right for such images: their sums are of float32, their offsets of 32 bits."""
    return x.dtype != torch.float64 and math.prod(x.shape[1:4]) * max(x.shape[4], out) < 2**31


@windows_times.register_fake
def _(x: Tensor, w: Tensor, stride: int, pad: list[int], mirrored: bool) -> Tensor:
    h, v = ((x.shape[2 + i] - w.shape[2 + i]) // stride + 1 for i in (0, 1))
    return x.new_empty(x.shape[0], x.shape[1], h, v, _out(w, mirrored))


@windows_grad.register_fake
def _(x: Tensor, d: Tensor, kernel: list[int], stride: int) -> Tensor:
    return x.new_empty(x.shape[0], d.shape[-1], *kernel, x.shape[-1])


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, ctx.stride, ctx.pad, ctx.mirrored = inputs
    ctx.save_for_backward(x, w)


def _backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    x, w = ctx.saved_tensors
    kernel, (up, along) = list(w.shape[2:4]), ctx.pad
    d, dx, dw = _nearest(d.contiguous()), None, None
    if ctx.needs_input_grad[1]:
        dw = windows_grad(x, d, kernel, ctx.stride)
        dw = mirror(dw).contiguous() if ctx.mirrored else dw
    if ctx.needs_input_grad[0]:  # the product of d's windows with the mirrored weights, where x was not padded
        around = _around(d, x.shape[2:4], kernel, ctx.stride, ctx.pad)
        if d.dtype == torch.float32:  # of which tensor cores want the summed dimension last: that takes a copy
            dx = windows_times(around, mirror(w).contiguous(), 1, [0, 0], ctx.mirrored)
        else:
            dx = windows_times(around, w, 1, [0, 0], not ctx.mirrored)
        dx = F.pad(dx, (0, 0, along, along, up, up))
    return dx, dw, None, None, None


def _around(d: Tensor, size: torch.Size, kernel: list[int], stride: int, pad: list[int]) -> Tensor:
    """d with zeros between its entries, for a stride, and around them."""
    before = [k - 1 - p for k, p in zip(kernel, pad, strict=True)]
    wanted = [s - 2 * p + k - 1 for s, k, p in zip(size, kernel, pad, strict=True)]
    if stride == 1:
        return F.pad(d, (0, 0, before[1], before[1], before[0], before[0])).contiguous()
    spread = d.new_zeros(*d.shape[:2], *wanted, d.shape[-1])
    at = [slice(b, b + (n - 1) * stride + 1, stride) for b, n in zip(before, d.shape[2:4], strict=True)]
    spread[:, :, at[0], at[1]] = d
    return spread


windows_times.register_autograd(_backward, setup_context=_keep)


@windows_times.register_vmap
def _(info: Any, dims: Any, x: Tensor, w: Tensor, stride: int, pad: list[int], mirrored: bool) -> tuple[Tensor, int]:
    return apart(info, windows_times(*joined(info, dims[:2], (x, w)), stride, pad, mirrored)), 0


@windows_grad.register_vmap
def _(info: Any, dims: Any, x: Tensor, d: Tensor, kernel: list[int], stride: int) -> tuple[Tensor, int]:
    return apart(info, windows_grad(*joined(info, dims[:2], (x, d)), kernel, stride)), 0
