"""Samplers of one shard's subposterior, and the function that runs them on all shards."""

from dataclasses import fields, replace

from shardmc.errors import OptionError, unknown
from shardmc.sample.gibbs import Gibbs, binomial_labels, multinomial_labels, whole_multiplicities
from shardmc.sample.independence import Exact, Independence, Warped
from shardmc.sample.sampler import DensitySampler, Sampler
from shardmc.sample.sampling import Auto, Sampled, sample, sample_calls
from shardmc.sample.shard_runs import ShardChains
from shardmc.sample.walkers import HMC, NUTS, RandomWalk

__all__ = [
    "HMC",
    "NUTS",
    "Auto",
    "DensitySampler",
    "Exact",
    "Gibbs",
    "Independence",
    "RandomWalk",
    "Sampled",
    "Sampler",
    "ShardChains",
    "Warped",
    "binomial_labels",
    "multinomial_labels",
    "named_sampler",
    "sample",
    "sample_calls",
    "whole_multiplicities",
]

_SAMPLERS: dict[str, type[Sampler | Auto]] = {
    "auto": Auto,
    "independence": Independence,
    "hmc": HMC,
    "nuts": NUTS,
    "random-walk": RandomWalk,
    "warped": Warped,
}


def named_sampler(given: str | Sampler | Auto, **options: object) -> Sampler | Auto:
    """A sampler by name, or one that was given, with these options.

    >>> named_sampler("hmc", chains=4).chains
    4
    """
    if isinstance(given, Sampler | Auto):
        made, name = given, type(given).__name__
    elif isinstance(given, str):
        kind = _SAMPLERS.get(given.lower().replace("_", "-"))
        if kind is None:
            raise unknown("sampler", given, _SAMPLERS)
        made, name = kind(), given
    else:
        raise OptionError(f"sampler must be a name or a Sampler, not {type(given).__name__}.")
    if not options:
        return made
    valid = [f.name for f in fields(made)]  # pyright: ignore[reportArgumentType]
    for option in options:
        if option not in valid:
            raise unknown(f"option of sampler {name!r}", option, valid)
    return replace(made, **options)  # pyright: ignore[reportArgumentType]
