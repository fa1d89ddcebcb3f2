"""Figures by matplotlib, a file a kind of figure."""
