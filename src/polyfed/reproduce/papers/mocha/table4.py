"""Errors of global, local and multi-task models."""

from polyfed.reproduce.papers.mocha.errors import errors

__all__ = ["errors"]
