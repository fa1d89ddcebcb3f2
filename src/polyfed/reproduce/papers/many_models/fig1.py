"""The log gap of one of two models over rounds, with a constant step."""

from polyfed.reproduce.papers.many_models.testbed import gaps

__all__ = ["gaps"]
