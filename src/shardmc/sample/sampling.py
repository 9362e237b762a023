"""Sample every shard with one sampler, or with the first that suits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import jax
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.data.grouped import GroupedBlocks
from shardmc.engine import Engine, ProgramCall
from shardmc.model import Model
from shardmc.sample.independence import Independence, Warped
from shardmc.sample.sampler import Sampler
from shardmc.sample.shard_runs import Part, ShardChains, ShardRuns, not_reported
from shardmc.sample.walkers import HMC
from shardmc.types import Located, Scaling, ShardDraws

LOW_ACCEPTANCE = {"cpu": 0.5}
"""Below this acceptance HMC makes more effective draws a second. On accelerators large batches of proposals cost less,
so that the limit is 0.3."""
_LOW_OF_MATCHED = 0.15
"""The same limit for groups with many effects, where a gradient takes longer than a value and HMC needs many."""

_GAIN = 2.0
"""HMC uses warped coordinates if the acceptance of independent proposals is at least this many times as high in them,
even if it is still low."""
_LEAST = 0.1
"""That acceptance must also be at least this. Lower ones differ by chance."""


@dataclass(frozen=True)
class Sampled:
    """The result of sampling every shard."""

    chains: tuple[ShardChains, ...]  # one per shard
    scaling: Scaling
    passes: float
    notes: tuple[str, ...] = ()

    @property
    def good(self) -> np.ndarray:
        """Shards that have draws."""
        return np.flatnonzero([not c.failure for c in self.chains])

    def draws(self, shares: np.ndarray) -> ShardDraws:
        """The draws of these shards, with chains joined."""
        good = self.good
        values = [self.chains[i].theta.reshape(-1, self.chains[i].theta.shape[-1]) for i in good]
        return ShardDraws.of(values, shares[good], self.scaling)


@dataclass(frozen=True)
class Auto:
    """Independence sampling; in warped coordinates where its acceptance is low, and HMC where it is low even there.

    Warped coordinates are tried on a few pilot shards if parameters are skewed there. They are used, by HMC too, if
    most of these shards then accept enough proposals, or at least a tenth of them and twice as many as before.

    Parameters
    ----------
    first
        For all shards.
    warped
        For shards where `first` accepts too few proposals; `None` leaves warped coordinates out.
    fallback
        For the shards where both accept too few.

    Examples
    --------
    >>> from shardmc import NUTS
    >>> Auto(fallback=NUTS(chains=2)).fallback.chains
    2
    """

    first: Sampler = field(default_factory=Independence)
    warped: Warped | None = field(default_factory=Warped)
    fallback: Sampler = field(default_factory=lambda: HMC(chains=8))
    needs_mode = True
    takes_power = True


def sample(
    model: Model,
    blocks: Blocks,
    located: Located | None,
    sampler: Sampler | Auto,
    engine: Engine,
    *,
    num_draws: int,
    seed: int,
    scaling: Scaling = "rescaled",
    done: Mapping[int, ShardChains] | None = None,
    on_shard: Callable[[int, ShardChains], None] | None = None,
    part: Part = not_reported,
) -> Sampled:
    """At least `num_draws` draws of every shard's rescaled or fractional subposterior.

    The random key of a shard is folded from (seed, purpose, shard), never from the order of execution. Shards in
    `done` are not sampled again. `on_shard` is called for every other shard as soon as it is finished. `part` is told
    about the steps: shards for a sampler of one call, otherwise the steps of all chains and of their tuning.
    """
    job = ShardRuns(model, blocks, located, engine, num_draws, seed, scaling, part)
    chains: dict[int, ShardChains] = dict(done or {})
    remaining = [i for i in range(blocks.num_shards) if i not in chains]

    def keep(shard: int, result: ShardChains) -> None:
        chains[shard] = result
        if on_shard is not None:
            on_shard(shard, result)

    low: dict[int, float] = {}
    what = ""
    if isinstance(sampler, Auto):
        low, sampler = _choose(job, sampler, remaining, keep)
        remaining = [i for i in sorted(low) if i not in chains]
        what = job.what(sampler, remaining)
    for shard, result in job.run(sampler, remaining, what):
        keep(shard, result)
    ordered = tuple(chains[i] for i in range(blocks.num_shards))
    return Sampled(ordered, scaling, job.passes, _notes(low, ordered))


def _choose(
    job: ShardRuns, auto: Auto, shards: Sequence[int], keep: Callable[[int, ShardChains], None]
) -> tuple[dict[int, float], Sampler]:
    """Keep the draws of shards that accept enough. Returns low acceptances of the first sampler, and the fallback.

    All pilots are sampled in warped coordinates, whichever shards remain, so that decisions are always the same.
    """
    limit, pilots = _low_acceptance(job.blocks), job.pilots
    first: dict[int, float] = {}
    for shard, result in job.run(auto.first, shards):
        first[shard] = result.acceptance
        if not result.acceptance < limit:
            keep(shard, result)
    low = {shard: acceptance for shard, acceptance in first.items() if acceptance < limit}
    if not low or auto.warped is None or not auto.warped.matters(job.tuning(auto.warped)):
        return low, auto.fallback
    what = "{} on pilot shards".format
    missing = [i for i in pilots if i not in first]
    first |= {i: r.acceptance for i, r in job.run(auto.first, missing, what(auto.first.name))}
    warped = dict(job.run(auto.warped, pilots, what(auto.warped.name)))
    enough = {i: min(limit, max(_GAIN * first[i], _LEAST)) for i in pilots}
    if 2 * sum(warped[i].acceptance >= enough[i] for i in pilots) < len(pilots):
        return low, auto.fallback
    rest = [i for i in sorted(low) if i not in pilots]
    if 2 * sum(warped[i].acceptance >= limit for i in pilots) < len(pilots):
        rest = []
    for shard, result in chain(warped.items(), job.run(auto.warped, rest, job.what(auto.warped, rest))):
        if shard in low and result.acceptance >= limit:
            keep(shard, result)
    return low, auto.fallback if auto.fallback.uses_rows else Warped(auto.fallback)


def _notes(low: Mapping[int, float], chains: Sequence[ShardChains]) -> tuple[str, ...]:
    """Which other samplers drew the shards where the independence sampler has a low acceptance."""
    shards = {
        name: [i for i in low if chains[i].sampler == name] for name in {chains[i].sampler for i in low}
    }
    return tuple(
        f"{len(shards[name])} of {len(chains)} shards {'was' if len(shards[name]) == 1 else 'were'} sampled with "
        f"{name}: the independence sampler accepted as few as "
        f"{min(low[i] for i in shards[name]):.0%} of its proposals there."
        for name in sorted(shards)
    )


def _low_acceptance(blocks: Blocks) -> float:
    if isinstance(blocks, GroupedBlocks) and blocks.matched:
        return _LOW_OF_MATCHED
    return LOW_ACCEPTANCE.get(jax.default_backend(), 0.3)


def sample_call(
    model: Model, blocks: Blocks, sampler: Sampler | Auto, num_draws: int, scaling: Scaling, engine: Engine
) -> ProgramCall:
    """The first call of the engine that `sample` makes."""
    job = ShardRuns(model, blocks, None, engine, num_draws, 0, scaling, not_reported)
    return job.first_call(sampler.first if isinstance(sampler, Auto) else sampler)
