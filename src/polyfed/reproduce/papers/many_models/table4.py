"""The gain of training several models together on data, M T_1 / T_M."""

from polyfed.reproduce.papers.many_models.training import gain

__all__ = ["gain"]
