"""The rest of the field: subsampling methods and expectation propagation, on the models and rows of `fit`."""

from shardmc.field.austerity import Austerity
from shardmc.field.confidence import Confidence
from shardmc.field.sghmc import SGHMC
from shardmc.field.sgld import SGLD
from shardmc.field.subsampling import METHODS, named_method, subsample

__all__ = ["METHODS", "SGHMC", "SGLD", "Austerity", "Confidence", "named_method", "subsample"]
