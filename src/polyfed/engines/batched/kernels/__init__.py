"""Operators of stacked clients that no library has: what they compute in torch, and Triton kernels for the GPU."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


@cache
def why_no_triton(device: torch.device) -> str:
    """Why Triton's kernels cannot be used on a GPU, or nothing: found out with a small one, once a process.

    It may be missing (Torch brings it along on Linux only), or the compiler and headers that it calls may be.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    try:
        from polyfed.engines.batched.kernels import convolution_triton

        image, window = torch.ones(1, 1, 1, 4, 4, device=device), torch.ones(1, 1, 1, 3, 3, device=device)
        found = float(convolution_triton.convolve(image, window, image.new_zeros(1, 1), [0, 0]).sum())
    except Exception as error:  # of a compiler, a driver, or Triton itself: whichever it is, there is another way
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return "" if abs(found - 36) < 1 else f"a sum that is 36 came out as {found:g}"
