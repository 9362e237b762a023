"""Other methods for large tables: subsampling and expectation propagation, on the models and rows of `fit`."""

from shardmc.field.comparing import compare_methods
from shardmc.field.gradients import SGHMC, SGLD
from shardmc.field.metropolis import Austerity, Confidence
from shardmc.field.propagation import Propagation, expectation_propagation
from shardmc.field.subsampling import METHODS, named_method, subsample

__all__ = [
    "METHODS",
    "SGHMC",
    "SGLD",
    "Austerity",
    "Confidence",
    "Propagation",
    "compare_methods",
    "expectation_propagation",
    "named_method",
    "subsample",
]
