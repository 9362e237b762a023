"""Models: plain JAX functions with named parameters, or NumPyro's model functions."""

from shardmc.model.model import Model
from shardmc.model.parameter import Parameter

__all__ = ["Model", "Parameter"]
