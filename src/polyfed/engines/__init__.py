"""Where clients' work is done: each engine is a Fleet."""

from __future__ import annotations

from polyfed.core.engine import engines

__all__ = ["engines"]
