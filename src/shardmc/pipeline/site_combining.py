"""Combine the files of the sites: draws of the posterior of all rows, computed without any row."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from shardmc.combiners import named_combiner
from shardmc.data.blocks import AbsentBlocks
from shardmc.engine import Local
from shardmc.errors import DataError, ModelError, OptionError
from shardmc.locate.expansion import Expansion
from shardmc.model import Model
from shardmc.pipeline.checking import CheckDraws
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.progress import shows_progress
from shardmc.pipeline.site_checks import listed_names, refuse_contradiction, refuse_unlike
from shardmc.pipeline.stage import Job, State
from shardmc.pipeline.stages import Combine
from shardmc.posterior import Plan, Posterior
from shardmc.sample import Auto, Sampled
from shardmc.seeds import checked_seed
from shardmc.store.site import Site, model_of, read_site
from shardmc.types import Combiner, Located, Mode, Progress

_SUM_OF_SHARES = 1e-6
_UNSURE = 0.1
"""If the mode may be off by more posterior standard deviations than this, another round is advised."""

GivenSites = Sequence[str | os.PathLike[str] | Site]


def locate_sites(sites: GivenSites) -> Mode:
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
    >>> import shardmc
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
    >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> first = shardmc.sample_shard(model, y[:300], share=0.15)
    >>> second = shardmc.sample_shard(model, y[300:], share=0.85, shard=1)
    >>> bool(abs(shardmc.locate_sites([first, second]).theta[0] - y.mean()) < 1e-4)
    True
    """
    return _mode_of(_read(sites))


@shows_progress
def combine_sites(
    sites: GivenSites,
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
        A `shardmc.Model`. It is needed only for parameters whose support has no name, and for derived quantities.
    combiner
        A combiner of rescaled draws: "recenter", "algorithm-1", "swiss", "mposterior", "wasserstein", "pie",
        "empirical-wasserstein" or "laplace".
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
    >>> import shardmc
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000)
    >>> model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> sites = [
    ...     shardmc.sample_shard(model, part, share=len(part) / 2_000, shard=i)
    ...     for i, part in enumerate(np.split(y, [300, 1_200]))
    ... ]
    >>> posterior = shardmc.combine_sites(sites)
    >>> bool(abs(posterior.draws["mu"].mean() - y.mean()) < 0.005)
    True
    """
    seed = checked_seed(seed)
    if model is not None and not isinstance(model, Model):
        raise OptionError(
            f"model must be a shardmc.Model, not {type(model).__name__}. Other models need rows to know their "
            "parameters: give model.bind(rows), with a few rows of a site."
        )
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
            f"The model's parameters are {listed_names(known_model.names)}, the sites' {listed_names(read[0].names)}."
        )
    elsewhere = AbsentBlocks(np.array([site.rows for site in read]), np.array([site.share for site in read]))
    located, notes = _located(read)
    job = Job(known_model, elsewhere, Local(), seed, chosen, Auto(), options=frozenset())
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


def _read(sites: GivenSites, other_models: bool = False) -> list[Site]:
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
