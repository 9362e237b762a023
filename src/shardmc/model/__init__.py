"""Models: plain JAX functions with named parameters, or NumPyro's model functions."""

from shardmc.model.model import Model
from shardmc.model.parameter import Parameter
from shardmc.model.recipe import Recipe
from shardmc.model.validate import columns_used, validate

__all__ = ["Model", "Parameter", "Recipe", "columns_used", "validate"]
