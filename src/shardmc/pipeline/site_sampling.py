"""Rows that must stay where they are: a site samples its own shard, and only one small file leaves it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
from scipy.linalg import expm, solve_triangular

from shardmc.combiners import Recenter
from shardmc.data import Blocks, Partition, Source
from shardmc.data.blocks import RescaledBlocks
from shardmc.engine import Engine, Local
from shardmc.errors import DataError, ModelError, OptionError, SamplingError
from shardmc.locate import asked_precision, locate, precision_of_rows
from shardmc.locate.expansion import Expansion, expand_likelihood, expand_prior
from shardmc.model import Model, Recipe
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.fitting import open_rows
from shardmc.pipeline.progress import shows_progress
from shardmc.pipeline.stage import Job, Log, Stage, State, known
from shardmc.pipeline.stages import ChoosePrecision, SampleShards
from shardmc.posterior import Posterior, load
from shardmc.sample import Auto, Sampler, named_sampler
from shardmc.seeds import Purpose, checked_seed, derived_seed
from shardmc.store.site import Site, plain_supports
from shardmc.types import Data, Located, Mode, Progress, RowValues


@shows_progress
def sample_shard(
    model: Recipe,
    rows: Data,
    *,
    share: float,
    located: Mode | Posterior | str | os.PathLike[str] | None = None,
    draws: int = 1_000,
    seed: int = 0,
    shard: int = 0,
    path: str | os.PathLike[str] | None = None,
    weights: RowValues = None,
    sampler: str | Sampler | Auto = "auto",
    engine: Engine | None = None,
    precision: str = "auto",
    min_rows: int = 50,
    noise: float = 0.0,
    progress: Progress | bool | None = None,
) -> Site:
    """Sample the shard of one site, where its rows are.

    The target is the prior times the likelihood of the site's rows to the power 1 / share, log pi + sum_j l_j / a_i:
    the site's rows count as much as all rows. The result, and the file, contain the draws, mode and curvature of that
    density on the unconstrained scale, the share, the number of rows, the precision of the computation, and the
    parameters' names and supports.

    Parameters
    ----------
    model
        The same model at every site.
    rows
        The site's rows: whatever `fit` takes as data.
    share
        The site's share of all rows, n_i / N. Any positive shares that sum to 1 over the sites give the same posterior;
        shares close to n_i / N give the least noise.
    located
        The mode of all rows from an earlier round: what `locate_sites` returned, or the posterior of `combine_sites`,
        or its file. The site then adds the gradient and curvature of its density at that point, and one Newton step
        leads to the mode of all rows.
    draws, sampler, engine, weights, precision, progress
        As in `fit`.
    seed
        May be the same at all sites: draws of different sites are independent because `shard` differs.
    shard
        The site's number, from 0.
    path
        The file to write (.nc).
    min_rows
        Refuse a site with fewer rows: the result of a few rows, or of one, reveals what they are. Weighted rows count
        as their effective number, (sum w)^2 / sum w^2.
    noise
        Move mode, curvature and draws at random, by about `noise` times what one row changes. It costs accuracy: the
        means of all rows are off by about noise * sqrt(K / N) posterior standard deviations, for K sites and N rows. It
        makes single rows hard to reconstruct, but it is not differential privacy.

    Examples
    --------
    >>> import shardmc
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=300)
    >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> site = shardmc.sample_shard(model, y, share=300 / 2_000, shard=0)
    >>> site.rows, site.names
    (300, ('mu',))
    """
    _check_options(share, draws, seed, shard, min_rows, noise)
    precision = asked_precision(precision)
    with precision_of_rows(precision):
        source, bound = open_rows(model, rows, seed)
        _refuse_few_rows(source.num_rows, min_rows)
        split = source.split(Partition(1, weights=weights), seed)
        if weights is not None:
            _refuse_few_rows(_effective_rows(split), min_rows, "With these weights the site's rows count as")
        blocks = RescaledBlocks(split, 1 / share)
    job = Job(
        model=bound,
        blocks=blocks,
        engine=Local() if engine is None else engine,
        seed=derived_seed(seed, Purpose.SITE, shard),
        combiner=Recenter(),
        sampler=named_sampler(sampler),
        draws_per_shard=draws,
        precision=precision,
    )
    common = _common_point(located, bound)
    stages = (
        ChoosePrecision(near=None if common is None else common.frame),
        LocateSite(common),
        SampleShards(),
    )
    state = Driver(progress=progress).run(job, stages)
    site = _site(job, state, common, source, float(share), int(shard))
    if noise:
        site = with_noise(site, float(noise))
    if path is not None:
        site.save(path)
    return site


def _site(job: Job, state: State, common: Mode | None, source: Source, share: float, shard: int) -> Site:
    """What leaves the site, from what the stages found there."""
    (chains,) = known(state.sampled).chains
    if chains.failure:
        raise SamplingError(f"The site's shard could not be sampled: {chains.failure}")
    with state.computing():
        reference = None if common is None else _expansion(job.model, job.blocks, common, job.engine)
    mode = state.mode if state.located is not None and state.located.found[0] else None
    return Site(
        shard=shard,
        share=share,
        rows=source.num_rows,
        names=tuple(job.model.names),
        supports=plain_supports(job.model),
        model=job.model.fingerprint(source.row_shapes()),
        chains=chains,
        precision=known(state.precision).name,
        mode=None if mode is None else mode.theta,
        curvature=None if mode is None else mode.curvature,
        reference=reference,
    )


@final
@dataclass(frozen=True, eq=False)
class LocateSite(Stage):
    """Find the mode of the site. If there is none, use the mode of all rows, if it is known."""

    name = "locate"
    common: Mode | None

    def run(self, job: Job, state: State, log: Log) -> State:
        try:
            mode, found = locate(job.model, state.blocks, job.engine), True
        except ModelError:
            if job.sampler.needs_mode and self.common is None:
                raise
            mode, found = self.common, False
        if mode is None:
            return state
        located = Located(mode, mode.theta[None], mode.curvature[None], np.array([found]))
        return state.after(self, passes=mode.passes, mode=mode, located=located)


def _check_options(share: float, draws: int, seed: int, shard: int, min_rows: int, noise: float) -> None:
    if not (isinstance(share, int | float | np.number) and 0 < share <= 1):
        raise OptionError(f"share must be the site's part of all rows, above 0 and at most 1, not {share!r}.")
    checked_seed(seed)
    if not (isinstance(noise, int | float | np.number) and 0 <= noise < np.inf):
        raise OptionError(
            f"noise must be 0 or a positive number, in units of what one row changes, not {noise!r}."
        )
    whole = (("draws", draws, 1), ("shard", shard, 0), ("min_rows", min_rows, 1))
    for name, value, least in whole:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise OptionError(f"{name} must be a whole number, {least} or more, not {value!r}.")


def _refuse_few_rows(count: int, min_rows: int, found: str = "The site has") -> None:
    if count < min_rows:
        rows = "1 row" if count == 1 else f"{count} rows"
        raise DataError(
            f"{found} only {rows}: fewer than min_rows={min_rows}. Its file would reveal too much about "
            "them. Join it with another site. Lower min_rows only if these rows may become known."
        )


def _effective_rows(blocks: Blocks) -> int:
    """The number of rows with equal weights that hold as much information as these weighted ones."""
    ((_, batch),) = blocks.batches([0], 1)
    weights = np.asarray(batch.take(0)[1], np.float64)
    return round(weights.sum() ** 2 / max((weights**2).sum(), np.finfo(float).tiny))


def _common_point(located: Mode | Posterior | str | os.PathLike[str] | None, model: Model) -> Mode | None:
    if located is None:
        return None
    given = load(Path(located)) if isinstance(located, str | os.PathLike) else located
    if isinstance(given, Posterior):
        if given.mode is None or given.curvature is None:
            raise OptionError("located has no mode: give what locate_sites returned, or leave it out.")
        given = Mode(given.mode, given.curvature, np.nan, 0.0)
    if given.theta.shape != (model.dim,):
        raise OptionError(f"located has {len(given.theta)} parameters; the model has {model.dim}.")
    return given


def _expansion(model: Model, blocks: Blocks, located: Mode, engine: Engine) -> Expansion:
    likelihood = expand_likelihood(model, blocks, located.frame, engine)
    return likelihood + expand_prior(model, likelihood.center)


def with_noise(site: Site, noise: float) -> Site:
    """The site with random changes, `noise` times as large as those that a typical row makes.

    Of a site with n rows, share a and curvature H, a typical row moves the mode by H^-1 / (a n) (as a covariance) and
    changes the curvature by 1 / n of itself. So the mode moves by noise / sqrt(a n) of a posterior standard deviation
    in every direction, and H = L L^T becomes L exp(noise / n S) L^T with S symmetric and standard normal. The draws
    move and stretch with them. The gradient and the curvature at the common point get the same changes, so that nothing
    is gained from having both.

    The random numbers come from the system, not from the seed: whoever knows the seed could subtract them.
    """
    if site.mode is None or site.curvature is None:
        raise ModelError(
            "The site has no mode, so shardmc cannot tell how much one row changes. Use a proper prior, or noise=0."
        )
    rng, dim = np.random.default_rng(), site.dim
    lower = np.linalg.cholesky(site.curvature)
    step = noise / np.sqrt(site.share * site.rows) * rng.normal(size=dim)
    square = rng.normal(size=(dim, dim))
    stretch = noise / site.rows * (square + square.T) / 2
    mode = site.mode + solve_triangular(lower.T, step)
    factor = lower @ expm(stretch / 2)  # factor factor^T is the new curvature
    z = (site.chains.theta - site.mode) @ lower
    reference = site.reference
    if reference is not None:
        change = lower @ (expm(stretch) - np.eye(dim)) @ lower.T
        reference = replace(
            reference, gradient=reference.gradient + lower @ step, curvature=reference.curvature + change
        )
    return replace(
        site,
        chains=replace(site.chains, theta=mode + z @ np.linalg.inv(factor)),
        mode=mode,
        curvature=factor @ factor.T,
        reference=reference,
        noise=noise,
    )
