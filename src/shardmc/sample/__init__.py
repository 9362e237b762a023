"""Samplers of one shard's subposterior, and the function that runs them on all shards."""

from dataclasses import fields
from typing import Any

from shardmc.errors import OptionError, unknown
from shardmc.sample.gibbs import Gibbs, binomial_labels, multinomial_labels, whole_multiplicities
from shardmc.sample.independence import Exact, Independence, Warped
from shardmc.sample.sampler import Sampler
from shardmc.sample.sampling import Auto, Sampled, sample, sample_call
from shardmc.sample.shard_runs import ShardChains
from shardmc.sample.walkers import HMC, NUTS, RandomWalk

__all__ = [
    "HMC",
    "NUTS",
    "Auto",
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
    "sample",
    "sample_call",
    "sampler",
    "whole_multiplicities",
]

_SAMPLERS: dict[str, Any] = {
    "auto": Auto,
    "independence": Independence,
    "hmc": HMC,
    "nuts": NUTS,
    "random-walk": RandomWalk,
    "warped": Warped,
}


def sampler(given: str | Sampler | Auto, **options: Any) -> Sampler | Auto:
    """A sampler by name, with options. An instance is returned unchanged.

    >>> sampler("hmc", chains=4).chains
    4
    """
    if not isinstance(given, str):
        if not isinstance(given, Sampler | Auto):
            raise OptionError(f"sampler must be a name or a Sampler, not {type(given).__name__}.")
        return given
    kind = _SAMPLERS.get(given.lower().replace("_", "-"))
    if kind is None:
        raise unknown("sampler", given, _SAMPLERS)
    valid = [f.name for f in fields(kind)]
    for name in options:
        if name not in valid:
            raise unknown(f"option of sampler {given!r}", name, valid)
    return kind(**options)
