"""Models: plain JAX functions with named parameters, NumPyro's model functions, or PyMC's models."""

from shardmc.model.model import Model
from shardmc.model.numpyro_model import NumPyroModel, from_numpyro
from shardmc.model.parameter import Parameter
from shardmc.model.pymc_model import PyMCModel, from_pymc
from shardmc.model.recipe import Recipe
from shardmc.model.validate import columns_used, validate

__all__ = [
    "Model",
    "NumPyroModel",
    "Parameter",
    "PyMCModel",
    "Recipe",
    "columns_used",
    "from_numpyro",
    "from_pymc",
    "validate",
]
