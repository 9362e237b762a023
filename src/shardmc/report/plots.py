"""Figures of a posterior, for notebooks and for the report: each function returns a matplotlib Figure."""

from shardmc.report.forest import plot_certificate, plot_forest
from shardmc.report.marginals import plot_marginals
from shardmc.report.pair import plot_pair
from shardmc.report.ridges import plot_ridges
from shardmc.report.shards import plot_chains, plot_shards

__all__ = [
    "plot_certificate",
    "plot_chains",
    "plot_forest",
    "plot_marginals",
    "plot_pair",
    "plot_ridges",
    "plot_shards",
]
