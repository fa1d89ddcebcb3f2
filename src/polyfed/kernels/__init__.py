"""Operators of stacked clients that no library has: what they compute in torch, and Triton kernels for the GPU."""

from functools import cache
from importlib.util import find_spec


@cache
def triton_is_here() -> bool:
    """Torch brings Triton along for GPUs on Linux; elsewhere there may be none."""
    return find_spec("triton") is not None
