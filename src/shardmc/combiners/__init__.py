"""Combiners: from the shards' draws to draws of the full posterior."""

from shardmc.combiners.barycenters import MPosterior, Wasserstein
from shardmc.combiners.combining import COMBINERS, CombinedDraws, combine, named_combiner
from shardmc.combiners.comparison import Comparison, compare
from shardmc.combiners.gaussian import Consensus, Laplace, Product
from shardmc.combiners.partition_trees import PartitionTrees
from shardmc.combiners.recenter import Recenter
from shardmc.combiners.weierstrass import Weierstrass

__all__ = [
    "COMBINERS",
    "CombinedDraws",
    "Comparison",
    "Consensus",
    "Laplace",
    "MPosterior",
    "PartitionTrees",
    "Product",
    "Recenter",
    "Wasserstein",
    "Weierstrass",
    "combine",
    "compare",
    "named_combiner",
]
