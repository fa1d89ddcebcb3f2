"""Operators of stacked clients that no library has: what they compute in torch, and Triton kernels for the GPU."""
