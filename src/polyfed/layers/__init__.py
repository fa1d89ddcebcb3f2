"""Layers between algorithms and clients: attacks at clients, lost replies, slow networks."""

from __future__ import annotations

from polyfed.core.layer import Layer, Layers, Outgoing, layers

__all__ = ["Layer", "Layers", "Outgoing", "layers"]
