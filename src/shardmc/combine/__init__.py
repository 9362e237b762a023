"""Combiners: from the shards' draws to draws of the full posterior."""

from shardmc.combine.consensus import Consensus
from shardmc.combine.laplace import Laplace
from shardmc.combine.mposterior import MPosterior
from shardmc.combine.product import Product
from shardmc.combine.recenter import Recenter
from shardmc.combine.registry import COMBINERS, combiner
from shardmc.combine.wasserstein import Wasserstein
from shardmc.combine.weierstrass import Weierstrass

__all__ = [
    "COMBINERS",
    "Consensus",
    "Laplace",
    "MPosterior",
    "Product",
    "Recenter",
    "Wasserstein",
    "Weierstrass",
    "combiner",
]
