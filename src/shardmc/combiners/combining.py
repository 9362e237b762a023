"""The combiners by name, and combining draws of shards that were sampled anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardmc.combiners.barycenters import MPosterior, Wasserstein
from shardmc.combiners.gaussian import Consensus, Laplace, Product
from shardmc.combiners.moments import VaryingDirections, invertible_covariances, listed_shards
from shardmc.combiners.partition_trees import PartitionTrees
from shardmc.combiners.read import RENAMED, GivenShards, Layout, read_shards
from shardmc.combiners.recenter import Recenter
from shardmc.combiners.weierstrass import Weierstrass
from shardmc.errors import OptionError, RunError, unknown
from shardmc.guards.files import write_netcdf
from shardmc.guards.limits import memory_explained
from shardmc.names import axis_names, shown, stored, stored_axis
from shardmc.seeds import Purpose, checked_seed, generator
from shardmc.types import Combiner, Located, ShardDraws

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True)
class CombinedDraws:
    """Draws of the full posterior, by name and as one array, and the combiner's notes."""

    values: np.ndarray  # (draw, dim)
    layout: Layout
    shard: np.ndarray | None  # (draw,) the shard each draw came from, if it came from one
    notes: tuple[str, ...]
    method: str

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        notes = "".join(f"\n  {note}" for note in self.notes)
        return f"<CombinedDraws by {self.method}: {len(self)} draws of {', '.join(map(shown, self.draws))}>{notes}"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every column of `values`."""
        return self.layout.names

    @cached_property
    def draws(self) -> dict[str, np.ndarray]:
        """Arrays (draw, ...) by name."""
        return self.layout.unflatten(self.values)

    @cached_property
    def tree(self) -> xr.DataTree:
        """The draws in ArviZ's layout: group `posterior`, and `sample_stats` with the shard of each draw."""
        import arviz_base

        groups = {"posterior": {stored(name): values[None] for name, values in self.draws.items()}}
        dims = {
            stored(name): [stored_axis(axis) for axis in axis_names(name, values.ndim - 1)]
            for name, values in self.draws.items()
        }
        if self.shard is not None:
            groups["sample_stats"] = {"shard": self.shard[None]}
        tree = arviz_base.from_dict(groups, dims=dims)
        tree["posterior"].attrs.update(method=self.method, notes="\n".join(self.notes))
        renamed = {stored(name): name for name in self.draws if stored(name) != name}
        if renamed:
            tree["posterior"].attrs[RENAMED] = json.dumps(renamed)
        return tree

    def to_pandas(self) -> pd.DataFrame:
        """One row per draw, one column per coordinate."""
        import pandas as pd

        return pd.DataFrame(self.values, columns=list(self.names))

    def save(self, path: str | Path) -> Path:
        """Write the tree as a netCDF file, which `combine`, ArviZ and xarray can read."""
        path = Path(path)
        if not path.parent.is_dir():
            raise RunError(f"There is no folder {str(path.parent)!r} to write {path.name!r} into.")
        write_netcdf(self.tree, path)
        return path


FAR = 10.0
"""A shard is named in the notes if it lies this many times farther away than expected of a random one."""


@memory_explained("Combining the draws", "Take fewer draws of each shard, or another combiner.")
def combine(
    draws: GivenShards,
    combiner: str | Combiner = "recenter",
    *,
    shares: Sequence[float] | np.ndarray | None = None,
    located: Located | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    **options: object,
) -> CombinedDraws:
    """Combine draws of the shards' subposteriors into draws of the full posterior.

    The draws must be of the subposteriors that the combiner takes, on the scale on which it should
    combine them. This cannot be checked. "recenter", "algorithm-1", "swiss", "mposterior",
    "wasserstein", "pie" and "empirical-wasserstein" take rescaled subposteriors, prior times the shard's
    likelihood to the power 1 / share; "consensus", "product", "nonparametric-product",
    "semiparametric-product", "weierstrass" and "partition-trees" take fractional ones, prior to the power
    share times the shard's likelihood. Unbounded parameters combine best: a standard deviation as its
    logarithm, a probability as its log odds.

    Parameters
    ----------
    draws
        An array (shard, draw, dim), or (shard, draw) for one parameter; or a list with an entry per shard: an
        array (draw, dim), a mapping from names to arrays, a pandas table, an xarray.DataTree in ArviZ's
        layout, or the path of a netCDF or CSV file (CmdStan's included). Shards may have unequal numbers of
        draws.
    combiner
        The name of a combiner, or a combiner.
    shares
        Each shard's share of the rows. Equal by default.
    located
        Modes and curvatures, if they are known.
    seed
        The seed of the random numbers that some combiners need.
    names
        Names of the columns, if `draws` are arrays.
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
    combined = chosen(shards, located, generator(checked_seed(seed), Purpose.COMBINE))
    label = combiner if isinstance(combiner, str) else type(combiner).__name__
    notes = (*far_shards(shards), *combined.notes)
    return CombinedDraws(combined.values, layout, combined.shard, notes, label)


def far_shards(draws: ShardDraws) -> tuple[str, ...]:
    """A note that names shards much farther from the others than random shards would be.

    The mean of a random shard lies about sqrt(dim / share) standard deviations of the full posterior from the
    centre of all shards.
    """
    varying = VaryingDirections.of(draws)
    if draws.num_shards < 2 or varying.rank == 0:
        return ()
    inner = varying.reduce(draws)
    covariances, _ = invertible_covariances(inner)
    factor = draws.shares if draws.scaling == "fractional" else np.ones(draws.num_shards)
    # The median spread, so that a shard that is far too wide does not hide one that is far away.
    whiteners = np.linalg.inv(np.linalg.cholesky(np.median(covariances * factor[:, None, None], axis=0)))
    deviation = (inner.means - np.median(inner.means, axis=0)) @ whiteners.T
    distance = np.linalg.norm(deviation, axis=1)
    far = np.flatnonzero(distance > FAR * np.sqrt(varying.rank / draws.shares))
    if len(far) == 0:
        return ()
    return (
        f"The mean of {listed_shards(far)} lies up to {distance[far].max():.3g} posterior standard deviations "
        f"from the median shard; about {np.sqrt(varying.rank / draws.shares[far].min()):.3g} is usual.",
    )


COMBINERS: dict[str, Callable[[], Combiner]] = {
    "recenter": Recenter,
    "algorithm-1": Recenter.algorithm_1,
    "swiss": Recenter.swiss,
    "consensus": Consensus,
    "product": Product,
    "nonparametric-product": partial(Product, kind="nonparametric"),
    "semiparametric-product": partial(Product, kind="semiparametric"),
    "weierstrass": Weierstrass,
    "partition-trees": PartitionTrees,
    "mposterior": MPosterior,
    "wasserstein": Wasserstein,
    "pie": partial(Wasserstein, kind="quantile"),
    "empirical-wasserstein": partial(Wasserstein, kind="empirical"),
    "laplace": Laplace,
}
"""Every combiner by name, with the function that makes it with its defaults."""


def named_combiner(combiner: str | Combiner, **options: object) -> Combiner:
    """The combiner of that name, with the given options.

    Parameters
    ----------
    combiner
        A name from `COMBINERS`, or a combiner.
    options
        Fields of the combiner's class.

    Examples
    --------
    >>> named_combiner("recenter", scale="none").scale
    'none'
    >>> named_combiner("recentre")
    Traceback (most recent call last):
        ...
    shardmc.errors.OptionError: Unknown combiner 'recentre'. Did you mean 'recenter'? Valid: ...
    """
    if isinstance(combiner, Combiner):
        made, name = combiner, type(combiner).__name__
    elif isinstance(combiner, str) and combiner in COMBINERS:
        made, name = COMBINERS[combiner](), combiner
    else:
        raise unknown("combiner", combiner, COMBINERS)
    if not options:
        return made
    valid = [f.name for f in fields(made)]  # pyright: ignore[reportArgumentType]
    for option in options:
        if not valid:
            raise OptionError(f"Combiner {name!r} has no options; {option!r} was given.")
        if option not in valid:
            raise unknown(f"option of combiner {name!r}", option, valid)
    return replace(made, **options)  # pyright: ignore[reportArgumentType]
