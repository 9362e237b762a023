"""What a run returns: draws of the posterior, their measured accuracy, and everything needed to repeat the run."""

from shardmc.posterior.plan import Plan, Regression
from shardmc.posterior.posterior import Posterior, ShardTable, load

__all__ = ["Plan", "Posterior", "Regression", "ShardTable", "load"]
