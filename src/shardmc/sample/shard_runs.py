"""Run one sampler on shards through an engine, and return the draws on the unconstrained scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.engine import DensityProgram, Engine, ProgramCall
from shardmc.errors import SamplingError
from shardmc.model import Model
from shardmc.sample.sampler import Chains, Sampler, Tuning
from shardmc.seeds import Purpose, shard_keys
from shardmc.target import DeviceFrame, Target
from shardmc.types import Frame, Located, Rows, Scaling, Tree

_PILOTS = 4

Part = Callable[[str, int], Callable[[int], None]]
"""Announces a part of the sampling: part(what it does, its steps) -> a function to call with the steps done."""


def not_reported(what: str, steps: int) -> Callable[[int], None]:
    """A part whose progress nobody wants to know."""
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


_Own = tuple[DeviceFrame, jax.Array, jax.Array]
"""A shard's frame, the power of its likelihood and prior, and the data of its random key."""


@dataclass(frozen=True)
class _SampleShard(DensityProgram[Chains]):
    """Program: draws of one shard's target."""

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
class _TuneShard(DensityProgram[Tuning]):
    """Program: tuning of a sampler on one pilot shard."""

    sampler: Sampler

    @property
    def density_only(self) -> bool:
        return not self.sampler.uses_rows

    def __call__(self, rows: Rows, weights: jax.Array, shard: _Own, shared: None) -> Tuning:
        frame, power, key = shard
        target = Target(self.model, rows, weights, frame, power)
        return self.sampler.tune(target, jax.random.wrap_key_data(key))


_FAR = 4.0
"""Standard deviations at which tails are compared: few proposals get there."""
_CLIP = 20.0


@dataclass(frozen=True)
class _ProbeTails(DensityProgram[jax.Array]):
    """Program: how much the log density of a shard is above a normal one, 4 sds to both sides along each parameter.

    The other parameters follow on the line of their conditional means. The result is (2, dim).
    """

    runs_a_few_times: ClassVar = True

    def __call__(self, rows: Rows, weights: jax.Array, shard: _Own, shared: None) -> jax.Array:
        frame, power, _ = shard
        along = _FAR * frame.basis / frame.scales[:, None]
        excess = Target(self.model, rows, weights, frame, power).log_densities(
            jnp.concatenate([-along, along])
        )
        excess = jnp.nan_to_num(excess + 0.5 * _FAR**2, nan=-jnp.inf)
        return jnp.clip(excess, -_CLIP, _CLIP).reshape(2, -1)


def frames(
    located: Located | None, scaling: Scaling, shares: np.ndarray, dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Centres (shard, dim) and bases (shard, dim, dim) in which each shard's target is about standard normal.

    A shard without a mode uses the frame of all rows. Without any mode the frame is the identity.
    """
    if located is None:
        of_all, found = Frame.identity(dim), np.zeros(len(shares), bool)
    else:
        of_all, found = located.mode.frame, located.found
    centers, bases = (np.repeat(a[None], len(shares), axis=0) for a in (of_all.center, of_all.basis))
    if located is not None:
        centers[found] = located.shard_modes[found]
        lower = np.linalg.cholesky(located.shard_curvatures[found])
        bases[found] = np.linalg.inv(lower).transpose(0, 2, 1)
    if scaling == "fractional":
        bases /= np.sqrt(shares)[:, None, None]
    return centers, bases


class ShardRuns:
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
        return f"{sampler.name} on {len(shards)} of {self.blocks.num_shards} shards"

    def run(
        self, sampler: Sampler, shards: Sequence[int], what: str = ""
    ) -> Iterable[tuple[int, ShardChains]]:
        if not shards:
            return
        pilots = sampler.tuning_steps * len(self.pilots)
        each = sampler.steps(self.num_draws)
        advance = self.part(what, pilots + each * len(shards))
        name = sampler.name
        program = _SampleShard(self.model, sampler, self.num_draws)
        tuning = self.tuning(sampler)
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
            yield shard, self._on_theta_scale(shard, result, name)
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
    def pilots(self) -> range:
        """A few shards, always the same ones."""
        return range(min(_PILOTS, self.blocks.num_shards))

    def tuning(self, sampler: Sampler) -> Tuning:
        """The average over the pilot shards."""
        if not sampler.tunes:
            return ()
        if sampler in self._tunings:
            return self._tunings[sampler]
        program = _TuneShard(self.model, sampler)
        found, failed = self._on_pilots(
            ProgramCall(program, self.blocks, self._per_shard(Purpose.TUNE), None)
        )
        if not found:
            shard, reason = min(failed.items())
            raise SamplingError(f"{sampler.name} could not be tuned. Shard {shard}: {reason}")
        self._tunings[sampler] = jax.tree.map(lambda *v: np.mean(v, axis=0), *found)
        return self._tunings[sampler]

    def probe(self) -> ProgramCall:
        """The program that compares the tails of pilot shards with those of a normal density."""
        return ProgramCall(_ProbeTails(self.model), self.blocks, self._per_shard(Purpose.SAMPLE), None)

    def tails(self) -> np.ndarray:
        """How much the log density is above a normal one 4 sds to both sides of each parameter, (2, dim).

        It is the mean over the pilots.
        """
        excess, _ = self._on_pilots(self.probe())
        self.passes += 2 * self.model.dim * float(self.blocks.shares[list(self.pilots)].sum())
        return np.mean(excess, axis=0) if excess else np.zeros((2, self.model.dim))

    def _on_pilots(self, call: ProgramCall) -> tuple[list[Tree], dict[int, str]]:
        """Results of a program on the pilot shards, in their order, and why others of them have none."""
        failed: dict[int, str] = {}
        results = self.engine.map(
            call.program, call.blocks, call.per_shard, call.shared, self.pilots, on_failure=failed.__setitem__
        )
        found = dict(results)
        return [found[shard] for shard in sorted(found)], failed

    def _on_theta_scale(self, shard: int, result: Chains, name: str) -> ShardChains:
        u = np.asarray(result.u, np.float64)
        theta = self.centers[shard] + u @ self.bases[shard].T
        if result.shift is not None:
            theta += np.asarray(result.shift, np.float64)
        acceptance = float(result.acceptance)
        failure = ""
        if not np.isfinite(theta).all():
            failure = f"{name} produced values that are not finite."
        elif acceptance == 0 or math.isnan(acceptance):
            failure = f"{name} accepted nothing."
        return ShardChains(theta, acceptance, int(result.divergences), name, failure)
