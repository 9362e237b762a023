"""Run methods of both families on the same model and rows, and measure error and cost of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TypeAlias, TypedDict, Unpack

import numpy as np

from shardmc.combiners import COMBINERS, Comparison
from shardmc.combiners.comparison import MethodResult, tabulated
from shardmc.engine import Engine
from shardmc.errors import ShardmcError, unknown
from shardmc.field.method import Subsampler
from shardmc.field.propagation import Propagation, expectation_propagation
from shardmc.field.subsampling import METHODS, subsample
from shardmc.model import Recipe
from shardmc.pipeline import fit
from shardmc.pipeline.fitting import FrontEnd
from shardmc.posterior import Posterior
from shardmc.types import Combiner, Data, RowValues

Method: TypeAlias = str | Combiner | Subsampler | Propagation
"""A method by its name, or with its options."""


class Common(TypedDict, total=False):
    """Options that `fit`, `subsample` and `expectation_propagation` all take."""

    weights: RowValues
    engine: Engine | None
    precision: str


class _Options(Common, total=True):
    """What every method is called with."""

    draws: int
    seed: int
    check: bool


PROPAGATION = "expectation-propagation"
USUAL = (
    "recenter",
    "consensus",
    "weierstrass",
    "partition-trees",
    "laplace",
    PROPAGATION,
    "sgld",
    "sgld-cv",
    "sghmc-cv",
    "confidence-proxies",
)
"""The methods that are compared if none are named."""


def compare_methods(
    model: Recipe | FrontEnd,
    data: Data,
    reference: Posterior | np.ndarray | None = None,
    methods: Sequence[Method] | Mapping[str, Method] = USUAL,
    *,
    shards: int | str = "auto",
    draws: int = 10_000,
    seed: int = 0,
    distance_names: Sequence[str] = ("kl", "worst_mean", "worst_sd"),
    **common: Unpack[Common],
) -> Comparison:
    """Run several methods on the same model and rows, and show the error and the cost of each in one table.

    Parameters
    ----------
    model, data, shards, draws, seed
        As in `fit`. Subsampling methods have no shards.
    reference
        What the methods are compared with: a posterior, or draws (draw, dim) on the unconstrained scale. By default all
        rows in one shard are sampled, which takes as many passes over the rows as there are draws.
    methods
        Names: combiners of `fit`, methods of `subsample`, "expectation-propagation"; or the objects with their options,
        such as `shardmc.field.SGLD(step_size=0.01)`. A mapping gives them other names in the table.
    distance_names
        Keys of `shardmc.combiners.distance.DISTANCES`.
    common
        Further options that `fit`, `subsample` and `expectation_propagation` all take: weights, engine, precision.

    Returns
    -------
    Comparison
        Prints as a table: distances from the reference, number of draws, effective draws of the parameter with the
        fewest, passes over all rows, seconds (compilation included). The last rows are noise floors.

    Examples
    --------
    >>> import shardmc
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=5_000)
    >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> table = compare_methods(model, y, methods=["recenter", "sgld-cv"], shards=4, draws=1_000).table
    >>> list(table.index), list(table.columns)
    (['recenter', 'sgld-cv', 'noise floor, 1000 draws'], ['kl', 'worst_mean', 'worst_sd', 'draws', 'ess', 'passes',
    'seconds'])
    """
    named = dict(methods) if isinstance(methods, Mapping) else {_label(method): method for method in methods}
    for label, method in named.items():
        _check(label, method)
    options: _Options = {"draws": draws, "seed": seed, "check": False, **common}
    if reference is None:
        reference = fit(model, data, shards=1, **options)
    target = reference.theta if isinstance(reference, Posterior) else np.asarray(reference)
    results: dict[str, MethodResult] = {}
    for label, method in named.items():
        begin = perf_counter()
        try:
            posterior = run_method(method, model, data, shards, options)
        except ShardmcError as error:
            results[label] = MethodResult(None, notes=(str(error),))
            continue
        columns = {
            "ess": float(np.nansum(posterior.shards.ess, axis=0).min()),
            "passes": sum(posterior.passes.values()),
            "seconds": perf_counter() - begin,
        }
        results[label] = MethodResult(posterior.theta, columns, posterior.notes)
    return tabulated(results, target, distance_names, seed)


def run_method(
    method: Method, model: Recipe | FrontEnd, data: Data, shards: int | str, options: _Options
) -> Posterior:
    """The posterior of one method, by its name or with its options."""
    if isinstance(method, Propagation) or method == PROPAGATION:
        chosen = vars(method) if isinstance(method, Propagation) else {}
        return expectation_propagation(model, data, shards=shards, **options, **chosen)
    if isinstance(method, Subsampler) or (isinstance(method, str) and method in METHODS):
        return subsample(model, data, method, **options)
    return fit(model, data, shards=shards, combiner=method, **options)


def _label(method: Method) -> str:
    return method if isinstance(method, str) else repr(method)


def _check(label: str, method: object) -> None:
    valid = (*COMBINERS, *METHODS, PROPAGATION)
    if not isinstance(method, Combiner | Subsampler | Propagation) and method not in valid:
        raise unknown("method", label, valid)
