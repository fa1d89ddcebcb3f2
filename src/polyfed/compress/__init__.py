"""Compressors of a client's Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyfed.registry import Registry

compressors: Registry[Callable[..., Any]] = Registry("compressor", __name__)
