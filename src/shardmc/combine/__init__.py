"""Combiners: from the shards' draws to draws of the full posterior."""

from shardmc.combine.combining import COMBINERS, combine, named_combiner
from shardmc.combine.comparison import Comparison, compare
from shardmc.combine.consensus import Consensus
from shardmc.combine.laplace import Laplace
from shardmc.combine.mposterior import MPosterior
from shardmc.combine.named import CombinedDraws
from shardmc.combine.product import Product
from shardmc.combine.recenter import Recenter
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
    "compare",
    "named_combiner",
]
