"""Each method in simulated time, with the best of its settings."""

from polyfed.reproduce.papers.mocha.rounds import tuned

__all__ = ["tuned"]
