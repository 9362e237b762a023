"""Run a sampler on every shard through an engine, and collect the draws on the unconstrained scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.data.grouped import GroupedBlocks
from shardmc.engine import Engine, ProgramCall, in_order
from shardmc.model import Model
from shardmc.sample.independence import Independence
from shardmc.sample.sampler import Chains, Sampler, Tuning
from shardmc.sample.walkers import HMC
from shardmc.sample.warped import Warped
from shardmc.seeds import Purpose, shard_keys
from shardmc.target import DeviceFrame, Target
from shardmc.types import Frame, Located, Rows, Scaling, ShardDraws

LOW_ACCEPTANCE = {"cpu": 0.5}
"""Below this acceptance HMC makes more effective draws a second. On accelerators large batches of proposals cost less,
so that the limit is 0.3."""
_LOW_OF_MATCHED = 0.15
"""The same limit for groups with many effects, where a gradient takes longer than a value and HMC needs many."""

_PILOTS = 4

Part = Callable[[str, int], Callable[[int], None]]
"""Announces a part of the sampling: part(what it does, its steps) -> a function to call with the steps done."""


def _untold(what: str, steps: int) -> Callable[[int], None]:
    return lambda done: None


@dataclass(frozen=True)
class ShardChains:
    """One shard's draws on the unconstrained scale and statistics of its chains, or why there are none."""

    theta: np.ndarray  # (chain, draw, dim)
    acceptance: float
    divergences: int
    sampler: str
    failure: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Named arrays, for a file."""
        return {
            "theta": self.theta,
            "acceptance": np.array(self.acceptance),
            "divergences": np.array(self.divergences),
            "sampler": np.array(self.sampler),
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> ShardChains:
        return ShardChains(
            arrays["theta"], float(arrays["acceptance"]), int(arrays["divergences"]), str(arrays["sampler"])
        )


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
    """Independence sampling; in warped coordinates where its acceptance is low, and HMC where it still is.

    Warped coordinates are tried on a few pilot shards first, and not used if most of these accept too little.

    Parameters
    ----------
    first
        For all shards.
    warped
        For shards where `first` accepts too few proposals; `None` leaves it out.
    fallback
        For all other shards.

    Examples
    --------
    >>> from shardmc import NUTS
    >>> Auto(fallback=NUTS(chains=2)).fallback.chains
    2
    """

    first: Sampler = field(default_factory=Independence)
    warped: Sampler | None = field(default_factory=Warped)
    fallback: Sampler = field(default_factory=lambda: HMC(chains=8))
    needs_mode = True
    takes_power = True


_Own = tuple[DeviceFrame, jax.Array, jax.Array]
"""A shard's frame, the power of its likelihood and prior, and the data of its random key."""


@dataclass(frozen=True)
class _SampleShard:
    """Program: draws of one shard's target."""

    model: Model
    sampler: Sampler
    num_draws: int

    @property
    def density_only(self) -> bool:
        return not self.sampler.uses_rows

    def __call__(self, rows: Rows, weights: jax.Array, shard: _Own, tuning: Tuning) -> Chains:
        frame, power, key = shard
        target = Target(self.model, rows, weights, frame, power)
        return self.sampler.sample(target, jax.random.wrap_key_data(key), self.num_draws, tuning)


@dataclass(frozen=True)
class _TuneShard:
    """Program: tuning of a sampler on one pilot shard."""

    model: Model
    sampler: Sampler

    @property
    def density_only(self) -> bool:
        return not self.sampler.uses_rows

    def __call__(self, rows: Rows, weights: jax.Array, shard: _Own, shared: None) -> Tuning:
        frame, power, key = shard
        target = Target(self.model, rows, weights, frame, power)
        return self.sampler.tune(target, jax.random.wrap_key_data(key))


def frames(
    located: Located | None, scaling: Scaling, shares: np.ndarray, dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Centres (shard, dim) and bases (shard, dim, dim) in which each shard's target is about standard normal.

    A shard without a mode uses the frame of all rows. Without any mode the frame is the identity.
    """
    if located is None:
        identity = Frame.identity(dim)
        each = [identity] * len(shares)
    else:
        each = [
            Frame.at(located.shard_modes[i], located.shard_curvatures[i])
            if located.found[i]
            else located.mode.frame
            for i in range(len(shares))
        ]
    widen = 1 / np.sqrt(shares) if scaling == "fractional" else np.ones(len(shares))
    return np.stack([f.center for f in each]), np.stack([f.basis for f in each]) * widen[:, None, None]


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
    part: Part = _untold,
) -> Sampled:
    """At least `num_draws` draws of every shard's rescaled or fractional subposterior.

    The random key of a shard is folded from (seed, purpose, shard), never from the order of execution. Shards in
    `done` are not sampled again. `on_shard` is called for every other shard as soon as it is finished. `part` is told
    about the steps: shards for a sampler of one call, otherwise the steps of all chains and of their tuning.
    """
    job = _Job(model, blocks, located, engine, num_draws, seed, scaling, part)
    chains: dict[int, ShardChains] = dict(done or {})
    remaining = [i for i in range(blocks.num_shards) if i not in chains]

    def keep(shard: int, result: ShardChains) -> None:
        chains[shard] = result
        if on_shard is not None:
            on_shard(shard, result)

    low: dict[int, float] = {}
    what = ""
    if isinstance(sampler, Auto):
        low = _choose(job, sampler, remaining, keep)
        remaining, sampler = [i for i in sorted(low) if i not in chains], sampler.fallback
        what = job.what(sampler, remaining)
    for shard, result in job.run(sampler, remaining, what):
        keep(shard, result)
    ordered = tuple(chains[i] for i in range(blocks.num_shards))
    return Sampled(ordered, scaling, job.passes, _notes(low, ordered))


def _choose(
    job: _Job, auto: Auto, shards: Sequence[int], keep: Callable[[int, ShardChains], None]
) -> dict[int, float]:
    """Keep the draws of shards that need no fallback. Returns the low acceptances of the first sampler."""
    low, limit = {}, _low_acceptance(job.blocks)
    for shard, result in job.run(auto.first, shards):
        if result.acceptance < limit:
            low[shard] = result.acceptance
        else:
            keep(shard, result)
    if low and auto.warped is not None:
        for shard, result in job.trial(auto.warped, sorted(low), limit):
            keep(shard, result)
    return low


def _notes(low: Mapping[int, float], chains: Sequence[ShardChains]) -> tuple[str, ...]:
    """Which other samplers drew the shards where the independence sampler has a low acceptance."""
    shards = {
        name: [i for i in low if chains[i].sampler == name] for name in {chains[i].sampler for i in low}
    }
    return tuple(
        f"{len(shards[name])} of {len(chains)} shards were sampled with {name}: the independence sampler accepted "
        f"as few as {min(low[i] for i in shards[name]):.0%} of its proposals there."
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
    job = _Job(model, blocks, None, engine, num_draws, 0, scaling, _untold)
    return job.first_call(sampler.first if isinstance(sampler, Auto) else sampler)


class _Job:
    """One call of `sample`: what does not depend on the sampler."""

    def __init__(
        self,
        model: Model,
        blocks: Blocks,
        located: Located | None,
        engine: Engine,
        num_draws: int,
        seed: int,
        scaling: Scaling,
        part: Part,
    ) -> None:
        self.model, self.blocks, self.engine = model, blocks, engine
        self.num_draws, self.scaling, self.part = num_draws, scaling, part
        self.centers, self.bases = frames(located, scaling, blocks.shares, model.dim)
        power = blocks.shares if scaling == "fractional" else np.ones(blocks.num_shards)
        real = jnp.result_type(float)
        frame = DeviceFrame(self.centers.astype(real), self.bases.astype(real))  # type: ignore[arg-type]
        self._frames = (frame, power.astype(real))
        self.seed = seed
        self.passes = 0.0
        self._tunings: dict[Sampler, Tuning] = {}

    def what(self, sampler: Sampler, shards: Sequence[int]) -> str:
        return f"{type(sampler).__name__} on {len(shards)} of {self.blocks.num_shards} shards"

    def trial(
        self, sampler: Sampler, shards: Sequence[int], limit: float
    ) -> Iterable[tuple[int, ShardChains]]:
        """Draws of those shards that reach the acceptance `limit`; of none if most pilot shards do not.

        All pilots are sampled, whichever shards remain, so that the decision is always the same.
        """
        pilots = range(self._num_pilots)
        rest = [i for i in shards if i not in pilots]
        tried = dict(self.run(sampler, pilots, f"{type(sampler).__name__} on pilot shards"))
        good = [i for i in pilots if tried[i].acceptance >= limit]
        if 2 * len(good) < len(pilots):
            return
        yield from ((i, tried[i]) for i in good if i in shards)
        for shard, result in self.run(sampler, rest, self.what(sampler, shards)):
            if result.acceptance >= limit:
                yield shard, result

    def run(
        self, sampler: Sampler, shards: Sequence[int], what: str = ""
    ) -> Iterable[tuple[int, ShardChains]]:
        if not shards:
            return
        pilots = sampler.tuning_steps * self._num_pilots
        each = sampler.steps(self.num_draws)
        advance = self.part(what, pilots + each * len(shards))
        name = type(sampler).__name__
        program = _SampleShard(self.model, sampler, self.num_draws)
        tuning = self._tune(sampler)
        if pilots:
            advance(pilots)
        failed: dict[int, str] = {}
        for shard, result in self.engine.map(
            program,
            self.blocks,
            self._per_shard(Purpose.SAMPLE),
            tuning,
            shards,
            on_done=lambda _: advance(each),
            on_failure=failed.__setitem__,
        ):
            self.passes += float(self.blocks.shares[shard]) * int(result.evaluations)
            yield shard, self._bring_home(shard, result, name)
        for shard, reason in failed.items():
            advance(each)
            nothing = np.full((1, self.num_draws, self.model.dim), np.nan)
            yield shard, ShardChains(nothing, math.nan, 0, name, reason)

    def first_call(self, sampler: Sampler) -> ProgramCall:
        """The first program that this sampler needs."""
        if sampler.tunes:
            program = _TuneShard(self.model, sampler)
            return ProgramCall(program, self.blocks, self._per_shard(Purpose.TUNE), None)
        program = _SampleShard(self.model, sampler, self.num_draws)
        return ProgramCall(program, self.blocks, self._per_shard(Purpose.SAMPLE), ())

    def _per_shard(self, purpose: Purpose) -> tuple[DeviceFrame, np.ndarray, np.ndarray]:
        return (*self._frames, shard_keys(self.seed, purpose, self.blocks.num_shards))

    @property
    def _num_pilots(self) -> int:
        return min(_PILOTS, self.blocks.num_shards)

    def _tune(self, sampler: Sampler) -> Tuning:
        """Average over a few pilot shards, always the same ones."""
        if not sampler.tunes:
            return ()
        if sampler in self._tunings:
            return self._tunings[sampler]
        pilots = range(self._num_pilots)
        program = _TuneShard(self.model, sampler)
        results = self.engine.map(program, self.blocks, self._per_shard(Purpose.TUNE), None, pilots)
        found = [value for _, value in in_order(results, pilots)]
        self._tunings[sampler] = jax.tree.map(lambda *v: np.mean(v, axis=0), *found)
        return self._tunings[sampler]

    def _bring_home(self, shard: int, result: Chains, name: str) -> ShardChains:
        u = np.asarray(result.u, np.float64)
        theta = self.centers[shard] + u @ self.bases[shard].T
        acceptance = float(result.acceptance)
        failure = ""
        if not np.isfinite(theta).all():
            failure = f"{name} produced values that are not finite."
        elif acceptance == 0 or math.isnan(acceptance):
            failure = f"{name} accepted nothing."
        return ShardChains(theta, acceptance, int(result.divergences), name, failure)
