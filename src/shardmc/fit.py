"""The main job: from a model and tall data to draws of the posterior, and how far to trust them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardmc.check import Certify, certify_options
from shardmc.clock import Clock
from shardmc.combine import combiner as named_combiner
from shardmc.data import Blocks, Partition, Source, as_source
from shardmc.engine import Local
from shardmc.errors import ModelError, OptionError
from shardmc.journal import Journal
from shardmc.judge import combine_sampled, judge
from shardmc.locate import (
    KEEP,
    Choice,
    asked_precision,
    choose_precision,
    influential,
    locate,
    locate_shards,
    precision_of_rows,
    prepare_gradients,
    prepare_influential,
)
from shardmc.model import Model, Recipe, validate
from shardmc.model.fingerprint import fingerprint
from shardmc.polish import mend
from shardmc.posterior import Posterior
from shardmc.sample import Auto, Sampler, prepare_sample, sample
from shardmc.sample import sampler as named_sampler
from shardmc.types import Combiner, Engine, Located, Progress, Scaling

_SAMPLE_ROWS = 64


def fit(
    model: Recipe,
    data: Any,
    *,
    shards: int | str = "auto",
    draws: int = 10_000,
    seed: int = 0,
    weights: Any = None,
    stratify: Any = None,
    shuffle: bool = True,
    keep: float | None = KEEP,
    sampler: str | Sampler | Auto = "auto",
    combiner: str | Combiner = "recenter",
    engine: Engine | None = None,
    check: bool = True,
    certify: Certify | bool = True,
    polish: bool = False,
    precision: str = "auto",
    run_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Posterior:
    """Draw from the posterior of a model with few parameters and very many rows.

    Parameters
    ----------
    model
        A `shardmc.Model`, or what `shardmc.from_numpyro` or `shardmc.from_pymc` gives.
    data
        Arrays with a common first axis (an array, a tuple, a dict, any pytree), a pandas, polars or Arrow table,
        or the path or URL of a Parquet file or folder, or of a CSV file.
    shards
        How many parts the rows are split into; "auto" chooses from the number of rows, parameters and draws.
    draws
        How many draws of the posterior are wanted; a few more may come so that shards give equally many.
    seed
        The same seed gives the same draws, whatever the batch size or an interruption; on other devices, or with
        another number of XLA's threads, rounding makes them others of the same posterior.
    weights
        One number per row (or a column's name): row j counts that often in the likelihood.
    stratify
        One value per row (or a column's name) whose values are dealt evenly over the shards.
    shuffle
        False leaves the rows in their order. Only for rows known to be exchangeable.
    keep
        A row is kept in every shard where its leverage exceeds `keep` times the largest share; None keeps none.
    sampler
        A sampler or its name: "auto", "independence", "hmc", "nuts", "random-walk".
    combiner
        A combiner or its name: "recenter" and its rivals.
    engine
        Where shards run; this machine unless given.
    check
        Whether to certify the result; takes one more pass over the data, or up to three where it is hard to tell.
    certify
        Effort and bounds of the certificate, `shardmc.Certify(draws=100, max_draws=1000, mean=0.1, sd=0.1)`; False
        for none, like `check=False`.
    polish
        Whether to take the errors of mean and covariance that the certificate measured out of the draws, and to
        certify them again at other draws. `posterior.polished` says what it did.
    precision
        "auto" measures how far rounding in single precision would move the posterior, and computes in double precision
        where that matters; "single" or "double" leaves no choice. `posterior.plan["precision"]` says which it was, and
        "precision_reason" why. JAX's own configuration stays as it is, and rows stay float32 in memory.
    run_dir
        A folder that keeps finished shards, so that a stopped run goes on where it was.
    progress
        Called as progress(stage, done, total).

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
    engine = Local() if engine is None else engine
    certified = certify_options(certify, check)
    _check_options(draws, seed, keep, certified is not None, polish)
    draws, seed = int(draws), int(seed)  # NumPy's are not written to files
    if combiner.scaling == "fractional" and not sampler.takes_power:
        raise OptionError(
            f"{type(combiner).__name__} takes draws of shards with a power of the prior, and step of Gibbs takes none: "
            "give step a fifth argument, power, or choose a combiner of rescaled draws such as 'recenter'."
        )
    asked = asked_precision(precision)
    clock = Clock(progress)

    with precision_of_rows(asked):
        source, model = clock("read", open_rows, model, data, seed)
        count = _number_of_shards(shards, source.num_rows, model.dim, draws)
        partition = Partition(count, shuffle, stratify, weights)
        blocks = clock("split", source.split, partition, seed)
    plan = {
        "rows": source.num_rows,
        "shards": count,
        "draws": draws,
        "draws_per_shard": _draws_per_shard(combiner, draws, blocks.shares),
        "seed": seed,
        "shuffle": shuffle,
        "stratified": stratify is not None,
        "weighted": weights is not None,
        "keep": keep,
        "sampler": _in_words(sampler),
        "combiner": _in_words(combiner),
        "scaling": combiner.scaling,
        "precision": asked,
        # What words leave out: which rows have which weights, what a user's own functions do.
        "content": fingerprint(partition.fingerprint, vars(sampler), vars(combiner)),
    }
    ahead = _Ahead(
        model,
        engine,
        sampler,
        combiner.scaling,
        plan["draws_per_shard"],
        0 if certified is None else min(certified.draws, draws),
    )
    with (
        Journal(run_dir, plan, source, model) as journal,
        _computing(asked, model, blocks, engine, clock, journal) as choice,
    ):
        kept, located = journal.located(blocks) or _locate(
            model, blocks, sampler, keep, engine, clock, journal, ahead, choice
        )
        sampled = clock(
            "sample",
            sample,
            model,
            kept,
            located,
            sampler,
            engine,
            num_draws=plan["draws_per_shard"],
            seed=seed,
            scaling=combiner.scaling,
            done=journal.finished(),
            on_shard=journal.write,
            on_progress=clock.counter("sample", count),
        )
        combined = clock("combine", combine_sampled, model, blocks, combiner, sampled, located, engine, seed)
        judged = clock(
            "check", judge, model, blocks, located, sampled, combined, engine, seed, certified=certified
        )
        polished = None
        if polish and certified is not None:
            mended = clock("polish", mend, model, blocks, located, combined, judged, engine, seed, certified)
            combined, judged, polished = mended.result, mended.judged, mended.polished
        posterior = Posterior(
            draws=combined.natural,
            theta=combined.theta,
            names=tuple(model.names),
            shard=combined.shard,
            shards=judged.shards,
            mode=None if located is None else located.mode.theta,
            curvature=None if located is None else located.mode.curvature,
            certificate=judged.certificate,
            polished=polished,
            findings=judged.findings,
            notes=(*choice.notes, *journal.notes, *sampled.notes, *combined.notes),
            plan={**plan, **choice.plan, "kept_rows": kept.num_kept, "polish": polish},
            seconds=clock.seconds,
            passes=clock.passes,
            versions=journal.versions,
        )
        journal.write_posterior(posterior)
    return posterior


def _in_words(method: Sampler | Auto | Combiner) -> str:
    """A sampler or combiner with its options, the same in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(method))


def _check_options(draws: int, seed: int, keep: float | None, check: bool, polish: bool) -> None:
    if not isinstance(draws, int | np.integer) or draws < 1:
        raise OptionError(f"draws must be a positive whole number, not {draws!r}.")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise OptionError(f"seed must be a whole number that is not negative, not {seed!r}.")
    if keep is not None and not (isinstance(keep, int | float) and keep > 0):
        raise OptionError(f"keep must be a positive number, or None to keep no rows, not {keep!r}.")
    if polish and not check:
        raise OptionError("polish=True needs the certificate: leave check and certify at True.")


def open_rows(model: Recipe, data: Any, seed: int) -> tuple[Source, Model]:
    """The rows the model reads, and the model, tried on a few of them before anything is compiled."""
    source = as_source(data)
    if source.is_table:
        source = source.select(model.columns_used(source.sample(_SAMPLE_ROWS, seed)))
    rows = source.sample(_SAMPLE_ROWS, seed)
    bound = model.bind(rows)
    validate(bound, rows)
    return source, bound


def _number_of_shards(shards: int | str, num_rows: int, dim: int, draws: int) -> int:
    """K as given; or chosen so that kept rows stay few (K^2 < N / (5 d)) and every shard is worth its overhead."""
    if shards == "auto":
        most = min(math.sqrt(num_rows / (5 * dim)), num_rows / max(1_000, 50 * dim), draws / 32)
        return max(1, int(most))
    if isinstance(shards, bool) or not isinstance(shards, int | np.integer):
        raise OptionError(f'shards must be a whole number or "auto", not {shards!r}.')
    if not 1 <= shards <= num_rows:
        raise OptionError(
            f"shards must lie between 1 and the number of rows, {num_rows}; {shards} was given."
        )
    return int(shards)


def _draws_per_shard(combiner: Combiner, draws: int, shares: np.ndarray) -> int:
    """Draws that every shard must give so that the combination has at least as many as wanted."""
    # Half a draw of tolerance: shards that differ by a row give equally many draws.
    return max(1, math.ceil(draws * float(shares.max()) - 0.5)) if combiner.pools else draws


@contextmanager
def _computing(
    asked: str, model: Model, blocks: Blocks, engine: Engine, clock: Clock, journal: Journal
) -> Iterator[Choice]:
    """Compute in the precision asked for, in that of an earlier call of the same run, or in a measured one."""
    before = journal.precision()
    if before is not None:
        choice = Choice.from_array(before, asked)
    else:
        choice = clock("precision", choose_precision, asked, model, blocks, engine)
    with choice.applied():
        yield choice


@dataclass(frozen=True)
class _Ahead:
    """Has programs compiled while others run, before they are needed."""

    model: Model
    engine: Engine
    sampler: Sampler | Auto
    scaling: Scaling
    draws_per_shard: int
    certified: int
    """Draws whose gradients the certificate will ask for."""

    def of_all(self, blocks: Blocks, keep: float | None) -> None:
        """What reads every row once: leverages and the certificate's gradients."""
        if keep is not None:
            prepare_influential(self.model, blocks, self.engine, keep)
        if self.certified:
            prepare_gradients(self.model, blocks, self.certified, self.engine)

    def of_shards(self, kept: Blocks) -> None:
        prepare_sample(
            self.model,
            kept,
            self.sampler,
            self.engine,
            num_draws=self.draws_per_shard,
            scaling=self.scaling,
        )


def _locate(
    model: Model,
    blocks: Blocks,
    sampler: Sampler | Auto,
    keep: float | None,
    engine: Engine,
    clock: Clock,
    journal: Journal,
    ahead: _Ahead,
    choice: Choice,
) -> tuple[Blocks, Located | None]:
    """The modes of all rows and of the shards, and the blocks with their kept rows."""
    keep = keep if blocks.num_shards > 1 else None
    ahead.of_all(blocks, keep)
    try:
        mode = clock("locate", locate, model, blocks, engine, start=choice.start)
    except ModelError:
        if sampler.needs_mode:
            raise
        return blocks, None
    positions = [np.empty(0, np.int64)] * blocks.num_shards
    if keep is not None:
        positions = clock("keep", influential, model, blocks, mode, engine, keep).positions
    kept = blocks.keep(positions)
    ahead.of_shards(kept)
    located = clock("locate shards", locate_shards, model, kept, mode, engine)
    journal.write_located(located, positions, choice.to_array())
    return kept, located
