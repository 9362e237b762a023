"""What a run returns: draws of the posterior, their measured accuracy, and everything needed to repeat the run."""

from shardmc.posterior.elpd import Loo, compare_models
from shardmc.posterior.posterior import Posterior, load
from shardmc.posterior.records import Adjusted, Plan, Regression, ShardTable

__all__ = ["Adjusted", "Loo", "Plan", "Posterior", "Regression", "ShardTable", "compare_models", "load"]
