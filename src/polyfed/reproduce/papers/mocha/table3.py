"""Sizes of the data sets."""

from polyfed.reproduce.papers.mocha.errors import sizes

__all__ = ["sizes"]
