"""Shared by tests of engines."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """The Triton kernels; where there is no GPU, in Triton's interpreter (`conftest`)."""
    pytest.importorskip("triton", reason="Triton has no package for this system")
    from polyfed.engines.batched.kernels import convolution_triton

    return convolution_triton
