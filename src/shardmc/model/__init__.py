"""Models: plain JAX functions with named parameters, NumPyro's model functions, or PyMC's models."""

from shardmc.model.model import Density, Model, Recipe
from shardmc.model.numpyro import NumPyroModel, from_numpyro
from shardmc.model.parameter import Parameter
from shardmc.model.pymc import PyMCModel, from_pymc
from shardmc.model.validation import validate

__all__ = [
    "Density",
    "Model",
    "NumPyroModel",
    "Parameter",
    "PyMCModel",
    "Recipe",
    "from_numpyro",
    "from_pymc",
    "validate",
]
