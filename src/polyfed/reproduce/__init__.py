"""The papers' figures and tables, run again: an item a figure or table, published values beside measured ones."""
