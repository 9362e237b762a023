"""Sample every shard with one sampler, or with the first that suits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import jax
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.engine import Engine, ProgramCall
from shardmc.model import Model
from shardmc.sample.independence import Independence, Warped
from shardmc.sample.sampler import DensitySampler, Sampler
from shardmc.sample.shard_runs import Part, ShardChains, ShardRuns, not_reported
from shardmc.sample.walkers import HMC
from shardmc.types import Located, Rows, Scaling, ShardDraws

LOW_ACCEPTANCE = {"cpu": 0.5}
"""Below this acceptance HMC makes more effective draws a second. On accelerators large batches of proposals cost less,
so that the limit is 0.3."""
_LOW_OF_MATCHED = 0.15
"""The same limit for groups with many effects, where a gradient takes longer than a value and HMC needs many."""

_GAIN = 2.0
"""HMC uses warped coordinates if the acceptance of independent proposals is at least this many times as high in them,
even if it is still low."""
_HEAVY = 3.0
"""The log density may be this much above a normal one at 4 standard deviations of a parameter. There lie then about 4 %
of the parameter's variance, which proposals hardly reach. The sech density has 4.7, a Student t with five degrees of
freedom 4.1, a normal one 0."""
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
    most of these shards then accept enough proposals, or at least a tenth of them and twice as many as before. All
    shards are sampled in warped coordinates if the density of a parameter has tails that few proposals would reach.

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

    def content(self, rows: Rows) -> object:
        """As for a `Sampler`."""
        return vars(self)


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

    if not isinstance(sampler, Auto):
        for shard, result in job.run(sampler, remaining):
            keep(shard, result)
        return Sampled(tuple(chains[i] for i in range(blocks.num_shards)), scaling, job.passes)
    choice = _choose(job, sampler, remaining, keep)
    remaining = [i for i in sorted(choice.low) if i not in chains]
    for shard, result in job.run(choice.fallback, remaining, job.what(choice.fallback, remaining)):
        keep(shard, result)
    ordered = tuple(chains[i] for i in range(blocks.num_shards))
    return Sampled(ordered, scaling, job.passes, choice.notes(ordered, sampler.first.name))


@dataclass(frozen=True)
class _Choice:
    """Which shards are left to another sampler, and why."""

    low: Mapping[int, float]
    """These shards, with the acceptance of independent proposals."""
    fallback: Sampler
    """Their sampler."""
    heavy: bool = False
    """Whether a parameter has tails that few independent proposals would reach."""

    def notes(self, chains: Sequence[ShardChains], first: str) -> tuple[str, ...]:
        """Which shards another sampler than the first drew, and why."""
        others: dict[str, list[int]] = {}
        for shard in range(len(chains)) if self.heavy else sorted(self.low):
            others.setdefault(chains[shard].sampler, []).append(shard)
        others.pop(first if self.heavy else "", None)
        return tuple(self._note(name, others[name], len(chains)) for name in sorted(others))

    def _note(self, name: str, shards: Sequence[int], count: int) -> str:
        reason = "the density of a parameter has heavier tails than independent proposals."
        if not self.heavy:
            least = min(self.low[shard] for shard in shards)
            reason = f"the independence sampler accepted as few as {least:.0%} of its proposals there."
        verb = "was" if len(shards) == 1 else "were"
        return f"{len(shards)} of {count} shards {verb} sampled with {name}: {reason}"


def _choose(
    job: ShardRuns, auto: Auto, shards: Sequence[int], keep: Callable[[int, ShardChains], None]
) -> _Choice:
    """Keep the draws of shards that accept enough, and choose a sampler for the others.

    All pilots are sampled in warped coordinates, whichever shards remain, so that decisions are always the same.
    """
    limit, pilots = _low_acceptance(job.blocks), job.pilots
    if not shards:
        return _Choice({}, auto.fallback)
    if auto.warped is not None and _probes(job.blocks) and job.tails().max() > _HEAVY:
        return _choose_for_heavy_tails(job, auto, auto.warped, shards, keep)
    first: dict[int, float] = {}
    for shard, result in job.run(auto.first, shards):
        first[shard] = result.acceptance
        if not result.acceptance < limit:
            keep(shard, result)
    low = {shard: acceptance for shard, acceptance in first.items() if acceptance < limit}
    if not low or auto.warped is None or not auto.warped.matters(job.tuning(auto.warped)):
        return _Choice(low, auto.fallback)
    missing = [i for i in pilots if i not in first]
    first |= {i: r.acceptance for i, r in job.run(auto.first, missing, _on_pilots(auto.first))}
    warped = dict(job.run(auto.warped, pilots, _on_pilots(auto.warped)))
    if not _most(warped[i].acceptance >= min(limit, max(_GAIN * first[i], _LEAST)) for i in pilots):
        return _Choice(low, auto.fallback)
    rest = [i for i in sorted(low) if i not in pilots]
    if not _most(warped[i].acceptance >= limit for i in pilots):
        rest = []
    for shard, result in chain(warped.items(), job.run(auto.warped, rest, job.what(auto.warped, rest))):
        if shard in low and result.acceptance >= limit:
            keep(shard, result)
    return _Choice(low, _in_warped_coordinates(auto.fallback))


def _choose_for_heavy_tails(
    job: ShardRuns,
    auto: Auto,
    warped: Warped,
    shards: Sequence[int],
    keep: Callable[[int, ShardChains], None],
) -> _Choice:
    """Keep draws in warped coordinates where most pilots accept enough there. Independent proposals have no say."""
    limit, pilots = _low_acceptance(job.blocks), job.pilots
    found = dict(job.run(warped, pilots, _on_pilots(warped)))
    if not _most(found[i].acceptance >= limit for i in pilots):
        first = {i: r.acceptance for i, r in job.run(auto.first, pilots, _on_pilots(auto.first))}
        helps = _most(found[i].acceptance >= max(_GAIN * first[i], _LEAST) for i in pilots)
        left = dict.fromkeys(shards, min(first.values()))
        return _Choice(left, _in_warped_coordinates(auto.fallback) if helps else auto.fallback, heavy=True)
    low: dict[int, float] = {}
    rest = [i for i in shards if i not in pilots]
    of_pilots = ((i, found[i]) for i in pilots if i in shards)
    for shard, result in chain(of_pilots, job.run(warped, rest, job.what(warped, rest))):
        if result.acceptance < limit:
            low[shard] = result.acceptance
        else:
            keep(shard, result)
    return _Choice(low, _in_warped_coordinates(auto.fallback), heavy=True)


def _in_warped_coordinates(sampler: Sampler) -> Sampler:
    return Warped(sampler) if isinstance(sampler, DensitySampler) else sampler


def _on_pilots(sampler: Sampler) -> str:
    return f"{sampler.name} on pilot shards"


def _most(each: Iterable[bool]) -> bool:
    """Whether at least half of these hold."""
    held = list(each)
    return 2 * sum(held) >= len(held)


def _probes(blocks: Blocks) -> bool:
    """Whether tails are compared. With many effects in each group the program takes long to compile and to run."""
    return not blocks.matched


def _low_acceptance(blocks: Blocks) -> float:
    if blocks.matched:
        return _LOW_OF_MATCHED
    return LOW_ACCEPTANCE.get(jax.default_backend(), 0.3)


def sample_calls(
    model: Model, blocks: Blocks, sampler: Sampler | Auto, num_draws: int, scaling: Scaling, engine: Engine
) -> Iterator[ProgramCall]:
    """The calls of the engine that `sample` makes in any case."""
    job = ShardRuns(model, blocks, None, engine, num_draws, 0, scaling, not_reported)
    if isinstance(sampler, Auto) and sampler.warped is not None and _probes(blocks):
        yield job.probe()
    yield job.first_call(sampler.first if isinstance(sampler, Auto) else sampler)
