"""Combiners: from the shards' draws to draws of the full posterior."""

from shardmc.combiners.combining import COMBINERS, combine, named_combiner
from shardmc.combiners.comparison import Comparison, compare
from shardmc.combiners.consensus import Consensus
from shardmc.combiners.laplace import Laplace
from shardmc.combiners.mposterior import MPosterior
from shardmc.combiners.named import CombinedDraws
from shardmc.combiners.product import Product
from shardmc.combiners.recenter import Recenter
from shardmc.combiners.wasserstein import Wasserstein
from shardmc.combiners.weierstrass import Weierstrass

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
