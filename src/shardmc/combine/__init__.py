"""Combiners: from the shards' draws to draws of the full posterior."""

from shardmc.combine.combine import combine
from shardmc.combine.compare import Comparison, compare
from shardmc.combine.consensus import Consensus
from shardmc.combine.laplace import Laplace
from shardmc.combine.mposterior import MPosterior
from shardmc.combine.product import Product
from shardmc.combine.recenter import Recenter
from shardmc.combine.registry import COMBINERS, combiner
from shardmc.combine.result import CombinedDraws
from shardmc.combine.wasserstein import Wasserstein
from shardmc.combine.weierstrass import Weierstrass

__all__ = [
    "COMBINERS",
    "CombinedDraws",
    "Comparison",
    "Consensus",
    "Laplace",
    "MPosterior",
    "Product",
    "Recenter",
    "Wasserstein",
    "Weierstrass",
    "combine",
    "combiner",
    "compare",
]
