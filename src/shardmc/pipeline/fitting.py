"""Fitting: from a model and a large table to draws of the posterior and their measured accuracy."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

import numpy as np

from shardmc.check import Certify, certify_options, ordered
from shardmc.check.advice import ANY
from shardmc.combiners import named_combiner
from shardmc.data import Partition, Source, as_source
from shardmc.data.row_weights import SurveyWeights, read_weights
from shardmc.engine import Engine, Local
from shardmc.errors import ModelError, OptionError, knows_its_options
from shardmc.locate import KEEP, asked_precision, precision_of_rows
from shardmc.mixed import integrated
from shardmc.model import Model, Recipe, validate
from shardmc.model.effects import refuse_effects
from shardmc.model.fingerprint import fingerprint
from shardmc.model.pymc import call_to_write, is_pymc_model
from shardmc.pipeline.checking import CheckDraws, Polish
from shardmc.pipeline.counts import (
    asked_nodes,
    has_many_effects,
    number_of_shards,
    refuse_nodes,
    small_shards,
)
from shardmc.pipeline.driver import Driver, Folder
from shardmc.pipeline.grouping import DescribeGroups, LocateGroups
from shardmc.pipeline.progress import shows_progress
from shardmc.pipeline.stage import Job
from shardmc.pipeline.stages import ChoosePrecision, Combine, KeepRows, Locate, LocateShards, SampleShards
from shardmc.posterior import Plan, Posterior
from shardmc.sample import Auto, Sampler, named_sampler
from shardmc.seeds import checked_seed
from shardmc.types import Combiner, Data, Progress, Rows, RowValues

if TYPE_CHECKING:
    from shardmc.pipeline.own_groups import RowsInGroups

_SAMPLE_ROWS = 64
"""Rows on which a model is checked before anything is compiled."""

FIT = (
    ChoosePrecision(),
    Locate(),
    KeepRows(),
    LocateShards(),
    SampleShards(),
    Combine(),
    CheckDraws(),
    Polish(),
)
"""The stages of a fit, after its rows are read and split."""

_GROUPS_CERTIFIED = 0.2
"""The part of the groups that each gradient of the certificate reads by default: integrals over effects take long."""

FIT_GROUPS = (
    LocateGroups(),
    KeepRows(),
    LocateShards(),
    SampleShards(),
    Combine(),
    CheckDraws(),
    Polish(),
    DescribeGroups(),
)
"""The stages of a fit whose shards are made of groups."""


@runtime_checkable
class FrontEnd(Protocol):
    """Makes a model and its rows from what the user gave, such as a formula."""

    mode_for: str
    """The user's options that need a mode of all rows, whatever the sampler needs; "" if none does."""

    def open(self, source: Source, seed: int) -> tuple[Source, Model]:
        """The rows that the model reads, and the model, checked on a few of them."""
        ...

    def finish(self, posterior: Posterior) -> Posterior:
        """The posterior in the terms of the front end."""
        ...


@knows_its_options()
@shows_progress
def fit(
    model: Recipe | FrontEnd,
    data: Data,
    *,
    shards: int | str = "auto",
    draws: int = 10_000,
    seed: int = 0,
    weights: RowValues | SurveyWeights = None,
    stratify: RowValues = None,
    shuffle: bool = True,
    keep: float | None = KEEP,
    sampler: str | Sampler | Auto = "auto",
    combiner: str | Combiner = "recenter",
    engine: Engine | None = None,
    check: bool = True,
    certify: Certify | bool = True,
    polish: bool = False,
    precision: str = "auto",
    nodes: int | str = "auto",
    run_dir: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress | bool | None = None,
) -> Posterior:
    """Compute the posterior of a model given a large table, and measure how accurate it is.

    Parameters
    ----------
    model
        A `shardmc.Model`, or what `shardmc.from_numpyro` or `shardmc.from_pymc` returns.
    data
        Arrays with a common first axis (an array, a tuple, a dict, any pytree), a pandas, polars or Arrow table,
        or the path or URL of a Parquet file or folder, or of a CSV file.
    shards
        The number of shards. "auto" chooses it from the number of rows, parameters and draws.
    draws
        The number of draws. There may be a few more, so that all shards contribute the same number.
    seed
        The same seed gives the same draws, for any batch size and after any interruption. On another device, or
        with another number of XLA's threads, the draws differ in rounding, but come from the same posterior.
    weights
        One number per row (or a column's name): row j counts weights[j] times in the likelihood.
    stratify
        One value per row (or a column's name). Each shard gets its share of the rows with each value.
    shuffle
        Whether rows go to shards at random. Use False only for rows that are already in random order.
    keep
        Keep a row in every shard if its leverage exceeds `keep` times the largest share. None keeps no rows.
    sampler
        A sampler or its name: "auto", "independence", "warped", "hmc", "nuts", "random-walk".
    combiner
        A combiner or its name: "recenter", "consensus", "weierstrass", ...
    engine
        Where shards run: `shardmc.Local()` for this machine, or `shardmc.Dask(...)`.
    check
        Whether to certify the result. That evaluates a part of the rows, or all if need be, at 100 draws, or at up to
        1,000 in hard cases.
    certify
        Effort and bounds of the certificate, `shardmc.Certify(draws=100, max_draws=1000, rows="auto", mean=0.1,
        sd=0.1)`. False turns it off, like `check=False`.
    polish
        Whether to correct the draws for the errors of mean and covariance that the certificate measured, and to
        certify them again at other draws. `posterior.polished` says what was done.
    precision
        "single", "double" or "auto". "auto" measures how far rounding in single precision would move the posterior, and
        computes in double precision if that matters. `posterior.plan.precision` and `posterior.plan.precision_reason`
        say which was used and why. JAX's configuration does not change, and rows stay float32 in memory.
    nodes
        For effects of groups that are integrated out by quadrature: the number of nodes in the direction of each
        effect. "auto" measures how many are needed, and may correct fewer ones at the mode; `posterior.plan.nodes` says
        how many were used. One node is Laplace's approximation.
    run_dir
        A folder for finished shards. The same call with the same folder resumes an interrupted run.
    overwrite
        Whether a run that is in the folder already is removed and started again, whatever it computed. Only its own
        files are removed, after the new model and all options are checked; a folder with other files and no run is
        refused.
    progress
        True, False, or a function that is called as progress(stage, done, total). By default bars show the stages and
        how long they will take where a person is looking: if stderr is a terminal, and in notebooks. True writes lines
        to stderr elsewhere. Nothing goes to stdout.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(3.0, 1.0, size=20_000)
    >>> model = Model(
    ...     log_likelihood=lambda params, y: -0.5 * (y - params["mu"]) ** 2,
    ...     log_prior=lambda params: -0.5 * params["mu"] ** 2 / 100,
    ...     parameters={"mu": ()},
    ... )
    >>> posterior = fit(model, y, shards=10, draws=1_000)
    >>> bool(abs(posterior.draws["mu"].mean() - y.mean()) < 0.001)
    True
    """
    combiner, sampler = named_combiner(combiner), named_sampler(sampler)
    certified = certify_options(certify, check)
    check_options(draws, seed, keep, certified is not None, polish)
    _check_scaling(combiner, sampler)
    front_end = as_front_end(model, effects=True)
    draws, seed = int(draws), int(seed)  # files cannot hold NumPy's numbers
    precision, asked_for = asked_precision(precision), asked_nodes(nodes)
    asked = {
        "draws": draws,
        "seed": seed,
        "shuffle": shuffle,
        "stratified": stratify is not None,
        "weighted": weights is not None,
        "keep": keep,
        "sampler": _in_words(sampler),
        "combiner": _in_words(combiner),
        "scaling": combiner.scaling,
        "precision": precision,
        "nodes": asked_for,
    }
    with Folder(run_dir, overwrite) as folder:
        driver = Driver(folder, progress)
        with precision_of_rows(precision):
            source = as_source(data)
            given = {"shards": int(shards)} if isinstance(shards, int | np.integer) else {}
            folder.expect(source, {**asked, **given})
            rows, bound = driver.timed("read", front_end.open, source, seed)
            refuse_nodes(asked_for, bound)
            counted = read_weights(rows, weights)
            count = number_of_shards(shards, rows, bound.dim, draws, many_effects=has_many_effects(bound))
            small = small_shards(count, rows, bound.dim)
            partition = Partition(count, shuffle, stratify, counted.given, weight_factor=counted.factor)
            # What the options do not show as text: the weights of the rows, and what the user's functions compute.
            own = sampler.content(rows.row_shapes())
            content = fingerprint(partition.fingerprint, own, vars(combiner))
            plan = Plan(rows=rows.num_rows, shards=count, content=content, **asked)
            if not overwrite:
                folder.begin(source, rows, bound, plan)
            blocks = driver.timed("split", rows.split, partition, seed)
            # Weights and strata are checked while rows are split. An earlier run is only removed after that.
            if overwrite:
                folder.begin(source, rows, bound, plan)
        if blocks.of_groups and certify is True and certified is not None:
            certified = replace(certified, rows=_GROUPS_CERTIFIED)
        job = Job(
            model=bound,
            blocks=blocks,
            engine=Local() if engine is None else engine,
            seed=seed,
            combiner=combiner,
            sampler=sampler,
            draws_per_shard=_draws_per_shard(combiner, draws, blocks.shares),
            precision=precision,
            nodes=asked_for,
            keep=keep if count > 1 else None,
            certify=certified,
            polish=polish,
            shuffled=shuffle,
            options=ANY.options - ({"stratify"} if blocks.of_groups else set()),
            mode_for=front_end.mode_for,
        )
        state = driver.run(job, FIT_GROUPS if blocks.of_groups else FIT)
        plan = replace(
            plan, draws_per_shard=job.draws_per_shard, kept_rows=state.shards.num_kept, polish=polish
        )
        if state.nodes is not None and state.nodes.few:
            by = state.nodes.finer if state.nodes.few < state.nodes.enough else None
            plan = replace(plan, nodes=state.nodes.few, nodes_of_correction=by)
        posterior = front_end.finish(driver.posterior(job, state, plan))
        posterior = replace(
            posterior,
            findings=tuple(ordered((*posterior.findings, *counted.findings, *small))),
            origin={**({"data": source.origin} if source.origin else {}), **posterior.origin},
        )
        folder.write_posterior(posterior)
    return posterior


@final
class _OneModel:
    """A model as it is."""

    mode_for = ""

    def __init__(self, model: Recipe, effects: bool) -> None:
        self._model, self._takes_effects = model, effects
        self._groups: RowsInGroups | None = None

    def open(self, source: Source, seed: int) -> tuple[Source, Model]:
        chosen, bound, rows = _bound(self._model, source, seed)
        if not self._takes_effects:
            refuse_effects(bound)
        if bound.effects is None:
            return chosen, bound
        from shardmc.pipeline.own_groups import RowsInGroups  # imported here because it is slow to import

        self._groups = RowsInGroups.of(source, tuple(rows), bound.effects)
        return self._groups.source(source), integrated(bound)

    def finish(self, posterior: Posterior) -> Posterior:
        return posterior if self._groups is None else self._groups.describe(posterior)


def as_front_end(model: Recipe | FrontEnd, *, effects: bool = False) -> FrontEnd:
    """What `fit` takes as a model, as a front end. Unless `effects`, effects of groups are refused."""
    if isinstance(model, FrontEnd):
        return model
    _refuse_other(model)
    return _OneModel(model, effects)


def open_rows(model: Recipe, data: Data, seed: int) -> tuple[Source, Model]:
    """The rows that the model reads, and the model, checked on a few of them before anything is compiled."""
    _refuse_other(model)
    source, bound, _ = _bound(model, as_source(data), seed)
    refuse_effects(bound)
    return source, bound


def _bound(model: Recipe, source: Source, seed: int) -> tuple[Source, Model, Rows]:
    """The rows that the model reads, the model, and the few rows on which it was checked."""
    if source.is_table:
        source = source.select(model.columns_used(source.sample(_SAMPLE_ROWS, seed)))
    rows = source.sample(_SAMPLE_ROWS, seed)
    bound = model.bind(rows)
    validate(bound, rows)
    return source, bound, rows


def _refuse_other(given: object) -> None:
    """Refuse what is not a model, with the call to write where that is known."""
    if isinstance(given, Recipe):
        return
    wanted = "a shardmc.Model, or what shardmc.from_numpyro or shardmc.from_pymc returns"
    if isinstance(given, str):
        raise ModelError(
            f"{given!r} is not a model. Give a formula and all rows to shardmc.glm; other functions take {wanted}."
        )
    if is_pymc_model(given):
        kind, call = "a PyMC model", call_to_write(given)
    elif callable(given):
        name = getattr(given, "__name__", "model")
        kind, call = (
            "a function, not a shardmc.Model",
            f"shardmc.from_numpyro({'model' if name == '<lambda>' else name})",
        )
    else:
        raise ModelError(f"The model must be {wanted}, not {type(given).__name__}.")
    raise ModelError(f"The model is {kind}: give {call} instead, as in shardmc.fit({call}, data).")


def _in_words(method: Sampler | Auto | Combiner) -> str:
    """A sampler or combiner with its options, the same in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(method))


def check_options(draws: int, seed: int, keep: float | None, check: bool, polish: bool) -> None:
    """Refuse options that are not allowed, before anything is read."""
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise OptionError(f"draws must be a positive whole number, not {draws!r}.")
    checked_seed(seed)
    check_keep(keep)
    if polish and not check:
        raise OptionError("polish=True needs the certificate: leave out check=False and certify=False.")


def check_keep(keep: float | None) -> None:
    """Refuse a bound on leverage that is not a positive number."""
    if isinstance(keep, bool) or not (keep is None or (isinstance(keep, int | float) and keep > 0)):
        raise OptionError(f"keep must be a positive number, or None to keep no rows, not {keep!r}.")


def _check_scaling(combiner: Combiner, sampler: Sampler | Auto) -> None:
    if combiner.scaling == "fractional" and not sampler.takes_power:
        raise OptionError(
            f"{type(combiner).__name__} needs fractional draws, but step of Gibbs does not take a power of the prior: "
            "give step a fifth argument, power, or choose a combiner of rescaled draws such as 'recenter'."
        )


def _draws_per_shard(combiner: Combiner, draws: int, shares: np.ndarray) -> int:
    """Draws that every shard must give so that the combination has at least as many as wanted."""
    # Half a draw of tolerance: shards that differ by a row give equally many draws.
    return max(1, math.ceil(draws * float(shares.max()) - 0.5)) if combiner.pools else draws
