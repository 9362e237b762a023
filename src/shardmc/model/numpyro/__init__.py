"""NumPyro's model functions as models for shardmc."""

from shardmc.model.numpyro.recipe import NumPyroModel, from_numpyro

__all__ = ["NumPyroModel", "from_numpyro"]
