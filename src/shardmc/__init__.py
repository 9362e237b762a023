"""shardmc: Bayesian posteriors for large tables, in seconds, with a certificate of how accurate they are.

Names are imported when they are first used, so that `import shardmc` and `shardmc --help` are fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from shardmc._methods import HOMES
from shardmc._version import __version__

_HOMES = {
    "fit": "shardmc.pipeline",
    "append": "shardmc.pipeline.appending",
    "sample_shard": "shardmc.pipeline.site_sampling",
    "locate_sites": "shardmc.pipeline.site_combining",
    "combine_sites": "shardmc.pipeline.site_combining",
    "Model": "shardmc.model",
    "Parameter": "shardmc.model",
    "from_numpyro": "shardmc.model",
    "from_pymc": "shardmc.model",
    "Posterior": "shardmc.posterior",
    "load": "shardmc.posterior",
    "compare_models": "shardmc.posterior",
    "Local": "shardmc.engine",
    "Dask": "shardmc.engine",
    "Independence": "shardmc.sample",
    "HMC": "shardmc.sample",
    "NUTS": "shardmc.sample",
    "RandomWalk": "shardmc.sample",
    "Warped": "shardmc.sample",
    "Exact": "shardmc.sample",
    "Gibbs": "shardmc.sample",
    "binomial_labels": "shardmc.sample",
    "multinomial_labels": "shardmc.sample",
    "Auto": "shardmc.sample",
    "glm": "shardmc.formulas",
    "predict": "shardmc.formulas",
    "subsample": "shardmc.field",
    "expectation_propagation": "shardmc.field",
    "compare_methods": "shardmc.field",
    "combine": "shardmc.combiners",
    "compare": "shardmc.combiners",
    "Recenter": "shardmc.combiners",
    "Consensus": "shardmc.combiners",
    "Product": "shardmc.combiners",
    "Weierstrass": "shardmc.combiners",
    "PartitionTrees": "shardmc.combiners",
    "MPosterior": "shardmc.combiners",
    "Wasserstein": "shardmc.combiners",
    "Laplace": "shardmc.combiners",
    "Certify": "shardmc.check",
    "ShardmcError": "shardmc.errors",
    "limits": "shardmc.guards.limits",
    "keep_programs": "shardmc.programs.cache",
}

__all__ = ["__version__", *sorted(_HOMES)]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from shardmc.check import Certify as Certify
    from shardmc.combiners import Consensus as Consensus
    from shardmc.combiners import Laplace as Laplace
    from shardmc.combiners import MPosterior as MPosterior
    from shardmc.combiners import PartitionTrees as PartitionTrees
    from shardmc.combiners import Product as Product
    from shardmc.combiners import Recenter as Recenter
    from shardmc.combiners import Wasserstein as Wasserstein
    from shardmc.combiners import Weierstrass as Weierstrass
    from shardmc.combiners import combine as combine
    from shardmc.combiners import compare as compare
    from shardmc.engine import Dask as Dask
    from shardmc.engine import Local as Local
    from shardmc.errors import ShardmcError as ShardmcError
    from shardmc.field import compare_methods as compare_methods
    from shardmc.field import expectation_propagation as expectation_propagation
    from shardmc.field import subsample as subsample
    from shardmc.formulas import glm as glm
    from shardmc.formulas import predict as predict
    from shardmc.guards.limits import limits as limits
    from shardmc.model import Model as Model
    from shardmc.model import Parameter as Parameter
    from shardmc.model import from_numpyro as from_numpyro
    from shardmc.model import from_pymc as from_pymc
    from shardmc.pipeline import fit as fit
    from shardmc.pipeline.appending import append as append
    from shardmc.pipeline.site_combining import combine_sites as combine_sites
    from shardmc.pipeline.site_combining import locate_sites as locate_sites
    from shardmc.pipeline.site_sampling import sample_shard as sample_shard
    from shardmc.posterior import Posterior as Posterior
    from shardmc.posterior import compare_models as compare_models
    from shardmc.posterior import load as load
    from shardmc.programs.cache import keep_programs as keep_programs
    from shardmc.sample import HMC as HMC
    from shardmc.sample import NUTS as NUTS
    from shardmc.sample import Auto as Auto
    from shardmc.sample import Exact as Exact
    from shardmc.sample import Gibbs as Gibbs
    from shardmc.sample import Independence as Independence
    from shardmc.sample import RandomWalk as RandomWalk
    from shardmc.sample import Warped as Warped
    from shardmc.sample import binomial_labels as binomial_labels
    from shardmc.sample import multinomial_labels as multinomial_labels


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shardmc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


# Plots, pages and predictions are functions of a posterior in later layers; here they become its methods.
HOMES.update(
    loo_of_formula="shardmc.formulas",
    with_rows_of_formula="shardmc.formulas",
    predict="shardmc.formulas",
    predict_file="shardmc.formulas",
    contrast="shardmc.formulas",
    marginal_effects="shardmc.formulas",
    plot_contrast="shardmc.report",
    plot_marginal_effects="shardmc.report",
    effects="shardmc.formulas",
    effect_draws="shardmc.formulas",
    plot_effects="shardmc.report",
    posterior_predictive_check="shardmc.formulas",
    write_report="shardmc.report",
    repr_html="shardmc.report",
    plot_marginals="shardmc.report",
    plot_forest="shardmc.report",
    plot_pair="shardmc.report",
    plot_shards="shardmc.report",
    plot_chains="shardmc.report",
    plot_certificate="shardmc.report",
    plot_ridges="shardmc.report",
)
