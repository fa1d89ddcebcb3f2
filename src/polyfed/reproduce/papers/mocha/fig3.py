"""MOCHA with nodes that drop out."""

from polyfed.reproduce.papers.mocha.rounds import dropped

__all__ = ["dropped"]
