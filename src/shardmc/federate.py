"""Rows that may not be moved: each site samples its own shard and hands out one small file; the files are combined."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardmc.combine import combiner as named_combiner
from shardmc.data import Blocks, Partition
from shardmc.data.blocks import AbsentBlocks, RescaledBlocks
from shardmc.engine import Local
from shardmc.errors import DataError, ModelError, OptionError, RunError, SamplingError
from shardmc.fit import open_rows
from shardmc.judge import combine_sampled, judge
from shardmc.locate import asked_precision, choose_precision, locate, precision_of_rows
from shardmc.locate.expansion import Expansion, expand_likelihood, expand_prior
from shardmc.model import Model, Recipe
from shardmc.posterior import Posterior, load
from shardmc.sample import Auto, Sampled, Sampler, ShardChains, sample
from shardmc.sample import sampler as named_sampler
from shardmc.store.manifest import package_versions
from shardmc.store.site import Site, model_of, plain_supports, read_site
from shardmc.types import Combiner, Engine, Located, Mode

_SUM_OF_SHARES = 1e-6
_UNSURE = 0.1
"""Error of the mode, in posterior standard deviations, from which on a further round is advised."""

Sites = Sequence[str | os.PathLike[str] | Site]


def sample_shard(
    model: Recipe,
    rows: Any,
    *,
    share: float,
    located: Mode | Posterior | str | os.PathLike[str] | None = None,
    num_draws: int = 1_000,
    seed: int = 0,
    shard: int = 0,
    path: str | os.PathLike[str] | None = None,
    weights: Any = None,
    sampler: str | Sampler | Auto = "auto",
    engine: Engine | None = None,
    precision: str = "auto",
) -> Site:
    """Sample the shard that one site holds, where it is.

    Its target is the prior times the likelihood of the site's rows to the power 1 / share, log pi + sum_j l_j / a_i:
    the site does the job of all rows. What comes back, and goes into the file, is draws, mode and curvature of that
    density on the unconstrained scale, the share, the number of rows, and the parameters' names and supports.

    Parameters
    ----------
    model
        The same model at every site.
    rows
        The site's rows: whatever `fit` takes as data.
    share
        The site's part of all rows, n_i / N. Any positive numbers that sum to 1 over the sites give the same posterior;
        those near n_i / N give it with the least noise.
    located
        The mode of all rows as an earlier round knew it: from `locate_sites`, or the posterior of `combine_sites` or
        its file. The site then also hands out gradient and curvature of its density at that point, from which the
        mode of all rows follows by one Newton step.
    num_draws, sampler, engine, weights, precision
        As in `fit`.
    seed
        Shared by all sites; draws of different sites are independent because `shard` differs.
    shard
        The site's number, from 0.
    path
        The file to write (.nc).

    Examples
    --------
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=300)
    >>> model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> site = sample_shard(model, y, share=300 / 2_000, shard=0)
    >>> site.rows, site.names
    (300, ('mu',))
    """
    _check_options(share, num_draws, seed, shard)
    engine, chosen = Local() if engine is None else engine, named_sampler(sampler)
    asked = asked_precision(precision)
    with precision_of_rows(asked):
        source, bound = open_rows(model, rows, seed)
        blocks = RescaledBlocks(source.split(Partition(1, weights=weights), seed), 1 / share)
    common = _common_point(located, bound)
    near = None if common is None else common.frame
    with choose_precision(asked, bound, blocks, engine, near).applied():
        mode, found = _site_mode(bound, blocks, common, engine, needed=chosen.needs_mode)
        chains = _sample(bound, blocks, mode, found, chosen, engine, num_draws, seed, shard)
        reference = None if common is None else _expansion(bound, blocks, common, engine)
    site = Site(
        shard=int(shard),
        share=float(share),
        rows=source.num_rows,
        names=tuple(bound.names),
        supports=plain_supports(bound),
        model=bound.fingerprint,
        chains=chains,
        mode=mode.theta if mode is not None and found else None,
        curvature=mode.curvature if mode is not None and found else None,
        reference=reference,
    )
    if path is not None:
        site.save(path)
    return site


def locate_sites(sites: Sites) -> Mode:
    """Mode and curvature of the posterior of all rows, from what the sites know of it.

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


def combine_sites(
    sites: Sites,
    *,
    model: Model | None = None,
    combiner: str | Combiner = "recenter",
    seed: int = 0,
) -> Posterior:
    """Draws of the posterior of all rows from the sites' files alone.

    Parameters
    ----------
    sites
        Files that `sample_shard` wrote, or what it returned: every site once.
    model
        Needed for parameters whose support has no name, and for derived quantities; otherwise the files say enough.
    combiner
        One that takes rescaled draws: "recenter" and its relatives.
    seed
        For combiners that draw random numbers.

    Returns
    -------
    Posterior
        Without a certificate, which would take another round: the rows' gradients at some of the combined draws.

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
    read = _read(sites)
    chosen = named_combiner(combiner)
    if chosen.scaling != "rescaled":
        raise OptionError(
            f"{type(chosen).__name__} combines fractional draws, and sites hand out rescaled ones; use 'recenter', "
            "'swiss', 'mposterior', 'wasserstein' or 'pie'."
        )
    known = model if model is not None else model_of(read[0].supports)
    if tuple(known.names) != read[0].names:
        raise OptionError(
            f"The model's parameters are {_listed(known.names)}, the sites' {_listed(read[0].names)}."
        )
    elsewhere = AbsentBlocks(np.array([site.rows for site in read]), np.array([site.share for site in read]))
    located, notes = _located(read, elsewhere.shares)
    sampled = Sampled(tuple(site.chains for site in read), elsewhere.shares, "rescaled", passes=0.0)
    engine = Local()
    combined = combine_sampled(known, elsewhere, chosen, sampled, located, engine, seed)
    judged = judge(known, elsewhere, located, sampled, combined, engine, seed, certified=None)
    return Posterior(
        draws=combined.natural,
        theta=combined.theta,
        names=read[0].names,
        shard=combined.shard,
        shards=judged.shards,
        mode=None if located is None else located.mode.theta,
        curvature=None if located is None else located.mode.curvature,
        findings=judged.findings,
        notes=(*notes, *combined.notes),
        plan={"rows": elsewhere.num_rows, "shards": len(read), "seed": int(seed), "combiner": repr(chosen)},
        versions=package_versions(),
    )


def _check_options(share: float, num_draws: int, seed: int, shard: int) -> None:
    if not (isinstance(share, int | float | np.number) and 0 < share <= 1):
        raise OptionError(f"share must be the site's part of all rows, above 0 and at most 1, not {share!r}.")
    for name, value, least in (("num_draws", num_draws, 1), ("seed", seed, 0), ("shard", shard, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise OptionError(f"{name} must be a whole number from {least} on, not {value!r}.")


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


def _site_mode(
    model: Model, blocks: Blocks, located: Mode | None, engine: Engine, *, needed: bool
) -> tuple[Mode | None, bool]:
    """The site's own mode, and whether it has one; otherwise that of all rows, where it is known."""
    try:
        return locate(model, blocks, engine), True
    except ModelError:
        if needed and located is None:
            raise
        return located, False


def _sample(
    model: Model,
    blocks: Blocks,
    mode: Mode | None,
    found: bool,
    sampler: Sampler | Auto,
    engine: Engine,
    num_draws: int,
    seed: int,
    shard: int,
) -> ShardChains:
    where = None
    if mode is not None:
        where = Located(
            mode,
            np.ones(1),
            mode.theta[None],
            mode.curvature[None],
            np.array([mode.decrement]),
            np.array([found]),
        )
    # Sites count from 0 each: the number of the shard goes into the seed.
    own = int(np.random.SeedSequence([seed, shard]).generate_state(1)[0] >> 1)
    (chains,) = sample(model, blocks, where, sampler, engine, num_draws=num_draws, seed=own).chains
    if chains.failure:
        raise SamplingError(f"The site's shard could not be sampled: {chains.failure}")
    return chains


def _expansion(model: Model, blocks: Blocks, located: Mode, engine: Engine) -> Expansion:
    likelihood = expand_likelihood(model, blocks, located.frame, engine)
    return likelihood + expand_prior(model, likelihood.center)


def _read(sites: Sites) -> list[Site]:
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
            f"The sites' shares sum to {total:.6g}, not to 1: a site is missing, or the shares were not agreed upon. "
            f"They are {', '.join(f'{site.share:.4g}' for site in read)}."
        )
    for site in read[1:]:
        if (site.names, site.supports) != (read[0].names, read[0].supports):
            raise RunError(
                f"Sites {read[0].shard} and {site.shard} have different models: {_listed(read[0].names)} against "
                f"{_listed(site.names)}."
            )
    return read


def _mode_of(sites: Sequence[Site]) -> Mode:
    references = [site.reference for site in sites]
    known = [reference for reference in references if reference is not None]
    if len(known) == len(sites) and all(np.array_equal(r.center, known[0].center) for r in known):
        total = known[0].times(sites[0].share)
        for site, reference in zip(sites[1:], known[1:], strict=True):
            total = total + reference.times(site.share)
        return Mode(total.center + total.step, total.curvature, total.decrement, passes=1.0)
    without = [site.shard for site in sites if site.mode is None]
    if without:
        raise ModelError(
            f"Site {without[0]} has no mode of its own: give all sites a common point by located, and sample again."
        )
    shares = np.array([site.share for site in sites])
    modes = np.stack([site.mode for site in sites if site.mode is not None])
    curvatures = np.stack([site.curvature for site in sites if site.curvature is not None])
    curvature = np.tensordot(shares, curvatures, axes=1)
    theta = np.linalg.solve(curvature, np.einsum("i,ijk,ik->j", shares, curvatures, modes))
    gap = theta - shares @ modes
    return Mode(theta, curvature, float(np.sqrt(gap @ curvature @ gap)) / 2, passes=0.0)


def _located(sites: Sequence[Site], shares: np.ndarray) -> tuple[Located | None, tuple[str, ...]]:
    """Where the sites' draws are and where they should be, with what the user should know about it."""
    notes = ()
    if len({site.model for site in sites}) > 1:
        notes = ("The sites' models are not the same code, or ran under different versions of Python.",)
    try:
        mode = _mode_of(sites)
    except ModelError as error:
        return None, (*notes, f"{error} Until then the draws are combined by their own means and spreads.")
    if mode.passes == 0:
        advice = (
            " A further round with located=locate_sites(...) finds it exactly."
            if mode.decrement > _UNSURE
            else ""
        )
        notes += (
            "The mode of all rows was put together from the sites' own modes and curvatures; it may be off by "
            f"{mode.decrement:.2g} posterior standard deviations.{advice}",
        )
    elif mode.decrement > 1:
        notes += (
            f"The mode of all rows is {mode.decrement:.2g} posterior standard deviations from the point that the sites "
            "were given: one more round, from the new one, would find it exactly.",
        )
    nowhere = np.full(sites[0].dim, np.nan)
    return Located(
        mode,
        shares,
        np.stack([nowhere if site.mode is None else site.mode for site in sites]),
        np.stack([np.diag(nowhere) if site.curvature is None else site.curvature for site in sites]),
        np.zeros(len(sites)),
        np.array([site.mode is not None for site in sites]),
    ), notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
