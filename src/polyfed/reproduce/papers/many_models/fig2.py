"""The log gap of one of two models over rounds, with a decaying step."""

from polyfed.reproduce.papers.many_models.testbed import gaps

__all__ = ["gaps"]
