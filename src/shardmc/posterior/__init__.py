"""What a run returns: draws of the posterior, their measured accuracy, and everything needed to repeat the run."""

from shardmc.posterior.posterior import Plan, Posterior, Regression, ShardTable, load

__all__ = ["Plan", "Posterior", "Regression", "ShardTable", "load"]
