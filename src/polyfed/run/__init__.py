"""A run: the loop, its directory, evaluation, and what a person sees of it."""
