"""A SuperLink and three SuperNodes for the tests of one file."""

from __future__ import annotations

from apps import flower

__all__ = ["flower"]
