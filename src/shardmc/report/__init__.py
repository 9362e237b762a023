"""Reports: one HTML page per run, and figures for notebooks."""

from shardmc.report.densities import plot_marginals, plot_pair
from shardmc.report.forest import (
    plot_certificate,
    plot_contrast,
    plot_effects,
    plot_forest,
    plot_marginal_effects,
    plot_ridges,
)
from shardmc.report.page import repr_html, write_report
from shardmc.report.shards import plot_chains, plot_shards

__all__ = [
    "plot_certificate",
    "plot_chains",
    "plot_contrast",
    "plot_effects",
    "plot_forest",
    "plot_marginal_effects",
    "plot_marginals",
    "plot_pair",
    "plot_ridges",
    "plot_shards",
    "repr_html",
    "write_report",
]
