"""Runs and results on disk: a file layer that knows nothing of models, sampling or JAX."""
