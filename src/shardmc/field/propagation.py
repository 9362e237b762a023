"""Expectation propagation over shards: every shard's likelihood is approximated by a Gaussian, given the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final, get_args

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.check import Certify, certify_options
from shardmc.combiners.moments import listed_shards, pool
from shardmc.data import Blocks, Rows
from shardmc.engine import Engine
from shardmc.errors import OptionError, SamplingError, unknown
from shardmc.field.method import check_counts, check_range, open_job
from shardmc.field.sites import Gaussian, Sites, from_coordinates, tilted_moments
from shardmc.locate.terms import SubposteriorTerms
from shardmc.model import Model, Recipe
from shardmc.pipeline.checking import CheckDraws
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.fitting import FrontEnd
from shardmc.pipeline.progress import shows_progress
from shardmc.pipeline.stage import Job, Log, PosteriorDraws, Stage, State, known
from shardmc.pipeline.stages import ChoosePrecision, Locate, LocateShards
from shardmc.posterior import Plan, Posterior
from shardmc.sample import Auto, Sampled, Sampler, ShardChains, named_sampler
from shardmc.sample.sampler import Chains, DensitySampler
from shardmc.seeds import Purpose, generator
from shardmc.target import DeviceFrame, Target
from shardmc.types import Data, Frame, Progress, RowValues

DrawnFrom = Literal["gaussian", "tilted"]


@final
@dataclass(frozen=True)
class Propagation:
    """Options of expectation propagation.

    Parameters
    ----------
    damping
        The part of the way, in natural parameters, that all sites go to their new values in a round.
    max_rounds
        The most rounds.
    tolerance
        It has converged if no mean moves by more than this many sds, and no sd changes by more than this fraction.
    site_draws
        Draws of every tilted distribution in a round. By default 200, or 10 per parameter.
    result
        "gaussian": draws of the final Gaussian; "tilted": the draws of the sites' tilted distributions, pooled.

    Examples
    --------
    >>> Propagation(damping=0.5).max_rounds
    10
    """

    damping: float = 0.7
    max_rounds: int = 10
    tolerance: float = 0.01
    site_draws: int | None = None
    result: DrawnFrom = "gaussian"

    def __post_init__(self) -> None:
        check_counts(self, max_rounds=1, site_draws=20)
        check_range(self, "damping", 0.0, 1.0, allowed=1.0)
        check_range(self, "tolerance", 0.0, math.inf)
        if self.result not in get_args(DrawnFrom):
            raise unknown("result of expectation propagation", self.result, get_args(DrawnFrom))


@shows_progress
def expectation_propagation(
    model: Recipe | FrontEnd,
    data: Data,
    *,
    shards: int | str = "auto",
    draws: int = 10_000,
    seed: int = 0,
    weights: RowValues = None,
    stratify: RowValues = None,
    sampler: str | Sampler | Auto = "independence",
    engine: Engine | None = None,
    check: bool = True,
    certify: Certify | bool = True,
    precision: str = "auto",
    progress: Progress | bool | None = None,
    **options: object,
) -> Posterior:
    """Approximate the posterior by a Gaussian that every shard has corrected (EP as a way of life, Gelman et al. 2014).

    The posterior is the product of the shards' sites, site k = prior^(share of k) times the likelihood of shard k. Each
    site has a Gaussian approximation. The tilted distribution of a shard is its own site times the Gaussians of all
    others. In a round, every shard's tilted distribution is sampled. The Gaussian of the shard is then moved, with
    damping, to the one with which the product of all Gaussians has the mean and covariance of these draws. The first
    round starts from the quadratic expansions at the mode, that is from the Laplace approximation. If all sites are
    Gaussian, the result is exact.

    Parameters
    ----------
    model, data, shards, draws, seed, weights, stratify, engine, check, certify, precision, progress
        As in `fit`.
    sampler
        A sampler of the tilted distributions, or its name, that needs log densities only.
    options
        Options of `shardmc.field.Propagation`: damping, max_rounds, tolerance, site_draws, result.

    Returns
    -------
    Posterior
        The notes say how many rounds it took, whether it converged, and which sites are not positive definite.

    Examples
    --------
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=20_000)
    >>> model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> posterior = expectation_propagation(model, y, shards=5, draws=1_000)
    >>> posterior.notes[-1]
    'Expectation propagation converged in 1 round: the last one moved no mean or sd by more than 0.000 sd.'
    """
    chosen, how = named_sampler(sampler), propagation(**options)
    first = chosen.first if isinstance(chosen, Auto) else chosen
    if not isinstance(first, DensitySampler):
        raise OptionError(
            f"{type(first).__name__} cannot sample tilted distributions, because it is not a DensitySampler. Choose "
            "a sampler that needs log densities only, such as 'independence' or 'hmc'."
        )
    certified = certify_options(certify, check)
    driver = Driver(progress=progress)
    front_end, job = open_job(
        driver,
        model,
        data,
        first,
        shards=shards,
        draws=draws,
        seed=seed,
        weights=weights,
        engine=engine,
        certify=certified,
        precision=precision,
        stratify=stratify,
        shuffled=True,
    )
    state = driver.run(
        job, (ChoosePrecision(), Locate(), LocateShards(), PropagateSites(how, first), CheckDraws())
    )
    plan = Plan(
        rows=job.blocks.num_rows,
        shards=job.blocks.num_shards,
        seed=job.seed,
        method=repr(how),
        draws=int(draws),
        stratified=stratify is not None,
        weighted=weights is not None,
        sampler=repr(first),
        scaling="fractional",
    )
    return front_end.finish(driver.posterior(job, state, plan))


def propagation(**options: object) -> Propagation:
    """The options, checked."""
    valid = list(Propagation.__dataclass_fields__)
    for name in options:
        if name not in valid:
            raise unknown("option of expectation propagation", name, valid)
    return replace(Propagation(), **options)


@dataclass(frozen=True)
class Tilted:
    """Target: one site times the Gaussian of all others, in coordinates in which that of all sites is standard."""

    site: Target
    others: tuple[jax.Array, jax.Array]  # (dim, dim) precision and (dim,) shift

    @property
    def dim(self) -> int:
        return self.site.dim

    def log_density(self, u: jax.Array) -> jax.Array:
        precision, shift = self.others
        return self.site.log_density(u) + shift @ u - 0.5 * u @ precision @ u

    def log_densities(self, u: jax.Array) -> jax.Array:
        precision, shift = self.others
        return self.site.log_densities(u) + u @ shift - 0.5 * jnp.sum((u @ precision) * u, axis=1)


_OfSite = tuple[tuple[jax.Array, jax.Array], jax.Array, jax.Array]
"""The Gaussian of the other sites (precision and shift), the share of the shard, and its number."""


@dataclass(frozen=True)
class _SampleTilted:
    """Program: draws of a shard's tilted distribution, and the logarithms of its ratios to a standard normal there."""

    model: Model
    sampler: DensitySampler
    num_draws: int

    def __call__(
        self, rows: Rows, weights: jax.Array, shard: _OfSite, shared: tuple[DeviceFrame, jax.Array]
    ) -> tuple[Chains, jax.Array]:
        others, share, index = shard
        frame, key = shared
        tilted = Tilted(Target(self.model, rows, weights, frame, share), others)
        key_tune, key_run = jax.random.split(jax.random.fold_in(key, index))
        tuning = self.sampler.tune(tilted, key_tune) if self.sampler.tunes else ()
        chains = self.sampler.sample(tilted, key_run, self.num_draws, tuning)
        u = chains.u.reshape(-1, tilted.dim)
        return chains, tilted.log_densities(u) + 0.5 * jnp.sum(u**2, axis=1)


@final
@dataclass(frozen=True, eq=False)
class PropagateSites(Stage):
    """Update the sites round by round until they agree, and draw from the Gaussian that they make."""

    name = "propagate"
    how: Propagation
    sampler: DensitySampler

    def run(self, job: Job, state: State, log: Log) -> State:
        frame = known(state.mode).frame
        advance = log.counter(self.how.max_rounds * state.blocks.num_shards)
        sites, passes, chains = _laplace_sites(job, state, frame), 1.0, ()
        while sites.rounds < self.how.max_rounds and sites.change > self.how.tolerance:
            this = _Round(job, state.blocks, self.how, self.sampler, sites, frame)
            sites, chains, cost = this.run(advance)
            passes += cost
        draws = self._draws(job, state, sites, frame, chains)
        return state.after(
            self,
            passes=passes,
            sampled=Sampled(chains, "fractional", passes),
            combined=draws,
            notes=(*state.notes, *self._notes(sites)),
        )

    def _draws(
        self, job: Job, state: State, sites: Sites, frame: Frame, chains: tuple[ShardChains, ...]
    ) -> PosteriorDraws:
        shard = None
        if self.how.result == "tilted":
            good = np.flatnonzero([not c.failure for c in chains])
            values = [chains[k].theta.reshape(-1, job.model.dim) for k in good]
            theta, origin, _ = pool(values, state.blocks.shares[good] / state.blocks.shares[good].sum())
            shard = good[origin]
        else:
            rng = generator(job.seed, Purpose.PROPAGATE)
            z = rng.normal(size=(job.draws_per_shard, job.model.dim))
            theta = frame.to_theta(sites.whole.mean + z @ sites.whole.root.T)
        return PosteriorDraws(theta, job.model.constrain_draws(theta), shard)

    def _notes(self, sites: Sites) -> list[str]:
        notes = []
        if sites.held:
            notes.append(
                f"In the last round nothing was updated for {listed_shards(sites.held)}: the tilted distribution could "
                "not be sampled."
            )
        if len(sites.indefinite):
            notes.append(
                "The Gaussian approximation has a precision that is not positive definite for "
                f"{listed_shards(sites.indefinite)}."
            )
        times = "1 round" if sites.rounds == 1 else f"{sites.rounds} rounds"
        verb = "converged" if sites.change <= self.how.tolerance else "did not converge"
        notes.append(
            f"Expectation propagation {verb} in {times}: the last one moved no mean or sd by more than "
            f"{sites.change:.3f} sd."
        )
        return notes


_NOT_PROPER = -1e-6
"""A cavity with a smaller eigenvalue, relative to all sites, is not a density. It may be flat: with one shard it is."""


@dataclass(frozen=True, eq=False)
class _Round:
    """One round: the tilted distributions in coordinates in which the Gaussian of all sites is standard."""

    job: Job
    blocks: Blocks
    how: Propagation
    sampler: DensitySampler
    sites: Sites
    frame: Frame

    def run(self, advance: Callable[[int], None]) -> tuple[Sites, tuple[ShardChains, ...], float]:
        """New sites from draws of all tilted distributions, these draws, and the passes over all rows."""
        whole, count = self.sites.whole, self.blocks.num_shards
        center, root = whole.mean, whole.root
        local = Frame(self.frame.to_theta(center), self.frame.basis @ root)
        others = [whole.over(self.sites.each.at(k)) for k in range(count)]
        seen = [each.seen_from(center, root) for each in others]
        name, nothing = type(self.sampler).__name__, np.full((1, 1, self.job.model.dim), np.nan)
        reasons = dict.fromkeys(range(count), "The Gaussian of the other sites is not a density.")
        wanted = [self.sites.each.at(k) for k in range(count)]
        chains = [ShardChains(nothing, math.nan, 0, name, reason) for reason in reasons.values()]
        held, passes = set(range(count)), 0.0
        for k, (found, log_ratio) in sorted(self._sample(local, seen, reasons, advance).items()):
            z, acceptance = np.asarray(found.u, np.float64), float(found.acceptance)
            passes += float(self.blocks.shares[k]) * (int(found.evaluations) + log_ratio.size)
            chains[k] = ShardChains(local.to_theta(z), acceptance, int(found.divergences), name)
            moments = tilted_moments(z.reshape(-1, z.shape[-1]), np.asarray(log_ratio, np.float64))
            if acceptance > 0 and moments is not None:
                held.remove(k)
                wanted[k] = from_coordinates(moments, center, root).over(others[k])
        chains = [replace(c, failure=reasons[k]) if c.failure else c for k, c in enumerate(chains)]
        after = self.sites.updated(Gaussian.stack(wanted), tuple(sorted(held)), self.how.damping)
        if after is None:
            raise SamplingError(
                f"Expectation propagation broke down in round {self.sites.rounds + 1}: the product of the sites is "
                "not a Gaussian. Use fewer shards, more site_draws or a smaller damping."
            )
        return after, tuple(chains), passes

    def _sample(
        self,
        local: Frame,
        cavities: list[Gaussian],
        reasons: dict[int, str],
        advance: Callable[[int], None],
    ) -> dict[int, tuple[Chains, jax.Array]]:
        """Draws of the tilted distributions, by site. For those that an engine lost, `reasons` says why."""
        real, job = jnp.result_type(float), self.job
        stacked = Gaussian.stack(cavities)
        proper = np.flatnonzero(np.linalg.eigvalsh(stacked.precision)[:, 0] > _NOT_PROPER)
        key = jax.random.fold_in(jax.random.key(job.seed), Purpose.PROPAGATE)
        num_draws = self.how.site_draws or max(200, 10 * job.model.dim)
        results = job.engine.map(
            _SampleTilted(job.model, self.sampler, num_draws),
            self.blocks,
            (
                (stacked.precision.astype(real), stacked.shift.astype(real)),
                self.blocks.shares.astype(real),
                np.arange(self.blocks.num_shards, dtype=np.int32),
            ),
            (DeviceFrame.of(local), jax.random.fold_in(key, self.sites.rounds)),
            proper.tolist(),
            on_done=advance,
            on_failure=reasons.__setitem__,
        )
        return dict(results)


def _laplace_sites(job: Job, state: State, frame: Frame) -> Sites:
    """Every site's quadratic expansion at the mode, in one pass over all rows."""
    blocks, dim = state.blocks, job.model.dim
    zeros = np.zeros((blocks.num_shards, dim), jnp.result_type(float))
    results = job.engine.map(SubposteriorTerms(job.model), blocks, zeros, DeviceFrame.of(frame))
    precision, shift = np.empty((blocks.num_shards, dim, dim)), np.empty((blocks.num_shards, dim))
    for k, (_, gradient, curvature) in results:
        share = blocks.shares[k]
        precision[k] = share * (np.asarray(curvature, np.float64) + np.asarray(curvature, np.float64).T) / 2
        shift[k] = share * np.asarray(gradient, np.float64)
    return Sites.of(Gaussian(precision, shift))
