"""Models: plain JAX functions with named parameters, or NumPyro's model functions."""

from shardmc.model.model import Model
from shardmc.model.numpyro_model import NumPyroModel, from_numpyro
from shardmc.model.parameter import Parameter
from shardmc.model.recipe import Recipe
from shardmc.model.validate import columns_used, validate

__all__ = ["Model", "NumPyroModel", "Parameter", "Recipe", "columns_used", "from_numpyro", "validate"]
