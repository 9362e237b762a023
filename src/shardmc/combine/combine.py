"""Combine draws of shards that were sampled anywhere, by any method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardmc.combine.moments import Varying, invertible_covariances, listed
from shardmc.combine.read import read_shards
from shardmc.combine.registry import combiner as named_combiner
from shardmc.combine.result import CombinedDraws
from shardmc.types import Combiner, Located, ShardDraws

FAR = 10.0
"""How many times farther than expected of a random shard one must lie to be named in the notes."""


def combine(
    draws: Any,
    combiner: str | Combiner = "recenter",
    *,
    shares: Sequence[float] | np.ndarray | None = None,
    located: Located | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    **options: Any,
) -> CombinedDraws:
    """Combine draws of the shards' subposteriors into draws of the full posterior.

    The draws are taken to be of the subposteriors that the combiner takes, and on the scale on which it
    should combine them: nothing in them tells. "recenter", "algorithm-1", "swiss", "mposterior",
    "wasserstein", "pie" and "empirical-wasserstein" take rescaled subposteriors, prior times the shard's
    likelihood to the power 1 / share; "consensus", "product", "nonparametric-product",
    "semiparametric-product" and "weierstrass" take fractional ones, prior to the power share times the
    shard's likelihood. Unbounded parameters combine best: a standard deviation as its logarithm, a
    probability as its log odds.

    Parameters
    ----------
    draws
        An array (shard, draw, dim), or (shard, draw) for one parameter; or a list with an entry per shard: an
        array (draw, dim), a mapping from names to arrays, a pandas table, an xarray.DataTree in ArviZ's
        layout, or the path of a netCDF or CSV file (CmdStan's included). Shards may have unequal numbers of
        draws.
    combiner
        The name of a combiner (an unknown one is refused with a list of all), or a combiner.
    shares
        Part of all rows that each shard has; equal without it.
    located
        Modes and curvatures, where they are known.
    seed
        Of the random numbers that some combiners need.
    names
        Names of the columns, where `draws` are arrays.
    options
        Options of the combiner.

    Returns
    -------
    CombinedDraws
        `.draws["beta"]`, `.values`, `.shard`, `.notes`, `.tree`, `.to_pandas()`, `.save(path)`.

    Examples
    --------
    >>> shards = np.random.default_rng(0).normal(size=(10, 1000, 2))
    >>> combined = combine(shards, "consensus", names=["alpha", "beta"])
    >>> combined.draws["beta"].shape
    (1000,)
    """
    chosen = named_combiner(combiner, **options)
    values, layout = read_shards(draws, names)
    share = None if shares is None else np.asarray(shares, dtype=np.float64)
    shards = ShardDraws.of(values, share, chosen.scaling)
    combined = chosen(shards, located, np.random.default_rng(seed))
    label = combiner if isinstance(combiner, str) else type(combiner).__name__
    notes = (*far_shards(shards), *combined.notes)
    return CombinedDraws(combined.values, layout, combined.shard, notes, label)


def far_shards(draws: ShardDraws) -> tuple[str, ...]:
    """A note that names shards which lie much farther from the others than random shards would.

    The mean of a random shard lies about sqrt(dim / share) standard deviations of the full posterior from the
    centre of all.
    """
    varying = Varying.of(draws)
    if draws.num_shards < 2 or varying.rank == 0:
        return ()
    inner = varying.reduce(draws)
    covariances, _ = invertible_covariances(inner)
    factor = draws.shares if draws.scaling == "fractional" else np.ones(draws.num_shards)
    # The median spread, so that one shard that is far too wide does not hide one that is far away.
    whiteners = np.linalg.inv(np.linalg.cholesky(np.median(covariances * factor[:, None, None], axis=0)))
    deviation = (inner.means - np.median(inner.means, axis=0)) @ whiteners.T
    distance = np.linalg.norm(deviation, axis=1)
    far = np.flatnonzero(distance > FAR * np.sqrt(varying.rank / draws.shares))
    if len(far) == 0:
        return ()
    return (
        f"The mean of {listed(far)} lies up to {distance[far].max():.3g} posterior standard deviations "
        f"from the median shard, where about {np.sqrt(varying.rank / draws.shares[far].min()):.3g} would "
        f"be usual.",
    )
