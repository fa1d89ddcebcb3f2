"""Callbacks that come with polyfed."""
