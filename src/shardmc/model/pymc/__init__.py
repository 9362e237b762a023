"""PyMC's models as models for shardmc."""

from shardmc.model.pymc.recipe import PyMCModel, from_pymc

__all__ = ["PyMCModel", "from_pymc"]
