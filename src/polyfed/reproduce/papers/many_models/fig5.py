"""The gain of training M models together on the testbed, M T_1 / T_M."""

from polyfed.reproduce.papers.many_models.testbed import gain

__all__ = ["gain"]
