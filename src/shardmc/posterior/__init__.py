"""What a run returns: draws of the posterior, how far to trust them, and everything needed to repeat them."""

from shardmc.posterior.plan import Plan, Regression
from shardmc.posterior.posterior import Posterior, ShardTable, load

__all__ = ["Plan", "Posterior", "Regression", "ShardTable", "load"]
