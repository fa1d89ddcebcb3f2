"""Linear tasks as the compiled loops want them: rows, losses, kernels."""
