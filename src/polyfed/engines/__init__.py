"""Where clients' work is done: each engine is a Fleet."""

from __future__ import annotations

from collections.abc import Callable

from polyfed.core.fleet import Engine
from polyfed.core.registry import Registry

engines: Registry[Callable[..., Engine]] = Registry("engine", __name__, modules=("polyfed.deploy.engine",))
