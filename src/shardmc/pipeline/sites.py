"""Rows that must stay where they are: each site samples its own shard, and only one small file leaves it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from shardmc.combiners import Recenter, named_combiner
from shardmc.data import Blocks, Partition
from shardmc.data.blocks import AbsentBlocks, RescaledBlocks
from shardmc.engine import Engine, Local
from shardmc.errors import DataError, ModelError, OptionError, SamplingError
from shardmc.locate import asked_precision, locate, precision_of_rows
from shardmc.locate.terms import Expansion, expand_likelihood, expand_prior
from shardmc.model import Model, Recipe
from shardmc.pipeline.checking import CheckDraws
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.fitting import open_rows
from shardmc.pipeline.progress import shows_progress
from shardmc.pipeline.site_checks import listed, refuse_contradiction, refuse_unlike
from shardmc.pipeline.site_noise import with_noise
from shardmc.pipeline.stage import Job, Log, Stage, State, known
from shardmc.pipeline.stages import ChoosePrecision, Combine, SampleShards
from shardmc.posterior import Plan, Posterior, load
from shardmc.sample import Auto, Sampled, Sampler
from shardmc.sample import sampler as named_sampler
from shardmc.seeds import Purpose, checked_seed, derived_seed
from shardmc.store.site import Site, model_of, plain_supports, read_site
from shardmc.types import Combiner, Data, Located, Mode, Progress

_SUM_OF_SHARES = 1e-6
_UNSURE = 0.1
"""If the mode may be off by more posterior standard deviations than this, another round is advised."""

Sites = Sequence[str | os.PathLike[str] | Site]


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
    weights: Any = None,
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
        Refuse a site with fewer rows: from few rows, or one, what leaves the site tells what they are. Weighted rows
        count as the number of equal weights that would be as good, (sum w)^2 / sum w^2.
    noise
        Move mode, curvature and draws at random, by about so many times what one row changes. It costs accuracy: the
        means of all rows are off by about noise * sqrt(K / N) posterior standard deviations, for K sites and N rows. It
        makes a single row hard to find out, but it is not differential privacy.

    Examples
    --------
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=300)
    >>> model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> site = sample_shard(model, y, share=300 / 2_000, shard=0)
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
            _refuse_few_rows(_rows_that_count(split), min_rows, " by their weights")
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
    (chains,) = known(state.sampled).chains
    if chains.failure:
        raise SamplingError(f"The site's shard could not be sampled: {chains.failure}")
    with state.computing():
        reference = None if common is None else _expansion(bound, blocks, common, job.engine)
    mode = state.mode if state.located is not None and state.located.found[0] else None
    site = Site(
        shard=int(shard),
        share=float(share),
        rows=source.num_rows,
        names=tuple(bound.names),
        supports=plain_supports(bound),
        model=bound.fingerprint(source.row_shapes()),
        chains=chains,
        precision=known(state.precision).name,
        mode=None if mode is None else mode.theta,
        curvature=None if mode is None else mode.curvature,
        reference=reference,
    )
    if noise:
        site = with_noise(site, float(noise))
    if path is not None:
        site.save(path)
    return site


def locate_sites(sites: Sites) -> Mode:
    """Mode and curvature of the posterior of all rows, from the files of the sites.

    After a first round every site's log density is taken as a quadratic at its own mode: H = sum_i a_i H_i and
    theta = H^-1 sum_i a_i H_i theta_i. The decrement is then half the distance between that point and the mean
    sum_i a_i theta_i: about the size of what the quadratics leave out. After a round with `located` the sites'
    gradients at one common point are known, and the mode is one Newton step from there.

    Parameters
    ----------
    sites
        Files that `sample_shard` wrote, or what it returned.

    Examples
    --------
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
    >>> model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> sites = [sample_shard(model, y[:300], share=0.15), sample_shard(model, y[300:], share=0.85, shard=1)]
    >>> bool(abs(locate_sites(sites).theta[0] - y.mean()) < 1e-4)
    True
    """
    return _mode_of(_read(sites))


@shows_progress
def combine_sites(
    sites: Sites,
    *,
    model: Model | None = None,
    combiner: str | Combiner = "recenter",
    seed: int = 0,
    other_models: bool = False,
    progress: Progress | bool | None = None,
) -> Posterior:
    """Compute draws of the posterior of all rows from the sites' files.

    Parameters
    ----------
    sites
        Files that `sample_shard` wrote, or what it returned: every site once.
    model
        Needed only for parameters whose support has no name, and for derived quantities.
    combiner
        A combiner of rescaled draws: "recenter", "swiss", "mposterior", "wasserstein" or "pie".
    seed
        For combiners that draw random numbers.
    other_models
        Whether sites may have models with different hashes: the same model under other versions of Python or JAX.
    progress
        As in `shardmc.fit`.

    Returns
    -------
    Posterior
        It has no certificate: that would need another round, with gradients of the rows at some combined draws.

    Examples
    --------
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
    >>> model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> sites = [
    ...     sample_shard(model, part, share=len(part) / 2_000, shard=i)
    ...     for i, part in enumerate(np.split(y, [300, 1_200]))
    ... ]
    >>> posterior = combine_sites(sites)
    >>> bool(abs(posterior.draws["mu"].mean() - y.mean()) < 0.005)
    True
    """
    seed = checked_seed(seed)
    read = _read(sites, other_models)
    chosen = named_combiner(combiner)
    if chosen.scaling != "rescaled":
        raise OptionError(
            f"{type(chosen).__name__} combines fractional draws, but the sites' draws are rescaled; use 'recenter', "
            "'swiss', 'mposterior', 'wasserstein' or 'pie'."
        )
    known_model = model if model is not None else model_of(read[0].supports)
    if tuple(known_model.names) != read[0].names:
        raise OptionError(
            f"The model's parameters are {listed(known_model.names)}, the sites' {listed(read[0].names)}."
        )
    elsewhere = AbsentBlocks(np.array([site.rows for site in read]), np.array([site.share for site in read]))
    located, notes = _located(read)
    job = Job(known_model, elsewhere, Local(), seed, chosen, Auto())
    state = State(
        elsewhere,
        elsewhere,
        located=located,
        sampled=Sampled(tuple(site.chains for site in read), "rescaled", passes=0.0),
        notes=notes,
    )
    driver = Driver(progress=progress)
    state = driver.run(job, (Combine(), CheckDraws()), state)
    plan = Plan(
        rows=elsewhere.num_rows,
        shards=len(read),
        seed=seed,
        combiner=repr(chosen),
        precision=", ".join(sorted({site.precision for site in read})),
    )
    return driver.posterior(job, state, plan)


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
            f"noise must be a number from 0 on, in units of what one row changes, not {noise!r}."
        )
    whole = (("draws", draws, 1), ("shard", shard, 0), ("min_rows", min_rows, 1))
    for name, value, least in whole:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise OptionError(f"{name} must be a whole number from {least} on, not {value!r}.")


def _refuse_few_rows(count: int, min_rows: int, how: str = "") -> None:
    if count < min_rows:
        rows = "1 row" if count == 1 else f"{count} rows"
        raise DataError(
            f"The site has{how} only {rows}, fewer than min_rows={min_rows}: what leaves it would say too much about "
            "them. Join it with another site; set min_rows lower only if these rows may be known."
        )


def _rows_that_count(blocks: Blocks) -> int:
    """The number of rows with equal weights that say as much as these weighted ones."""
    ((_, batch),) = blocks.batches([0], 1)
    weights = np.asarray(batch.take(0)[1], np.float64)
    return round(weights.sum() ** 2 / max((weights**2).sum(), np.finfo(float).tiny))


def _common_point(located: Mode | Posterior | str | os.PathLike[str] | None, model: Model) -> Mode | None:
    if located is None:
        return None
    given = load(Path(located)) if isinstance(located, str | os.PathLike) else located
    if isinstance(given, Posterior):
        if given.mode is None or given.curvature is None:
            raise OptionError("located has no mode; use what locate_sites gives, or leave it out.")
        given = Mode(given.mode, given.curvature, np.nan, 0.0)
    if given.theta.shape != (model.dim,):
        raise OptionError(f"located has {len(given.theta)} parameters; the model has {model.dim}.")
    return given


def _expansion(model: Model, blocks: Blocks, located: Mode, engine: Engine) -> Expansion:
    likelihood = expand_likelihood(model, blocks, located.frame, engine)
    return likelihood + expand_prior(model, likelihood.center)


def _read(sites: Sites, other_models: bool = False) -> list[Site]:
    if isinstance(sites, str | os.PathLike | Site):
        raise OptionError("One site was given; give a list with all of them.")
    read = sorted(
        (each if isinstance(each, Site) else read_site(each) for each in sites), key=lambda site: site.shard
    )
    if not read:
        raise OptionError("No site was given.")
    numbers = [site.shard for site in read]
    if len(set(numbers)) < len(numbers):
        twice = next(n for n in numbers if numbers.count(n) > 1)
        raise DataError(f"Site {twice} is given twice; every site needs its own number, and counts once.")
    total = sum(site.share for site in read)
    if abs(total - 1) > _SUM_OF_SHARES:
        raise DataError(
            f"The sites' shares sum to {total:.6g}, not to 1: a site is missing, or the shares do not fit together. "
            f"They are {', '.join(f'{site.share:.4g}' for site in read)}."
        )
    refuse_unlike(read, other_models)
    for site in read:
        refuse_contradiction(site)
    return read


def _at_common_point(sites: Sequence[Site]) -> Expansion | None:
    """The log posterior of all rows at the point that all sites were given; None if they were not given one."""
    references = [site.reference for site in sites if site.reference is not None]
    if len(references) < len(sites) or any(
        not np.array_equal(each.center, references[0].center) for each in references
    ):
        return None
    first, *others = (each.times(site.share) for site, each in zip(sites, references, strict=True))
    return sum(others, start=first)


def _mode_of(sites: Sequence[Site]) -> Mode:
    total = _at_common_point(sites)
    if total is not None:
        if np.linalg.eigvalsh(total.curvature)[0] <= 0:
            raise ModelError(
                "At the point that the sites were given, the log posterior of all rows is flat or has no maximum "
                "nearby. Start from another point (located= of sample_shard), or give the parameters a proper prior."
            )
        return Mode(total.center + total.step, total.curvature, total.decrement, passes=0.0)
    without = [site.shard for site in sites if site.mode is None]
    if without:
        raise ModelError(
            f"Site {without[0]} has no mode. Sample again at all sites, with a common point (located= of sample_shard)."
        )
    shares = np.array([site.share for site in sites])
    modes = np.stack([site.mode for site in sites if site.mode is not None])
    curvatures = np.stack([site.curvature for site in sites if site.curvature is not None])
    curvature = np.tensordot(shares, curvatures, axes=1)
    theta = np.linalg.solve(curvature, np.einsum("i,ijk,ik->j", shares, curvatures, modes))
    gap = theta - shares @ modes
    return Mode(theta, curvature, float(np.sqrt(gap @ curvature @ gap)) / 2, passes=0.0)


def _located(sites: Sequence[Site]) -> tuple[Located | None, tuple[str, ...]]:
    """The modes of the sites and of all rows, and notes for the user."""
    notes = ()
    if len({site.model for site in sites}) > 1:
        notes = ("The sites' models are not the same, or ran under different versions of Python or JAX.",)
    if any(site.noise for site in sites):
        variance = sum(site.share * site.noise**2 / site.rows for site in sites)
        notes += (
            "Sites added noise to their results: a mean may be off by about "
            f"{np.sqrt(variance):.2g} posterior standard deviations.",
        )
    try:
        mode = _mode_of(sites)
    except ModelError as error:
        return None, (*notes, f"{error} Until then the draws are combined by their own means and spreads.")
    if _at_common_point(sites) is None:
        advice = (
            " A further round with located=locate_sites(...) finds it exactly."
            if mode.decrement > _UNSURE
            else ""
        )
        notes += (
            "The mode of all rows was computed from the modes and curvatures of the sites; it may be off by "
            f"{mode.decrement:.2g} posterior standard deviations.{advice}",
        )
    elif mode.decrement > 1:
        notes += (
            f"The mode of all rows is {mode.decrement:.2g} posterior standard deviations from the point that the sites "
            "were given. Another round from the new point finds it exactly.",
        )
    nowhere = np.full(sites[0].dim, np.nan)
    return Located(
        mode,
        np.stack([nowhere if site.mode is None else site.mode for site in sites]),
        np.stack([np.diag(nowhere) if site.curvature is None else site.curvature for site in sites]),
        np.array([site.mode is not None for site in sites]),
    ), notes
