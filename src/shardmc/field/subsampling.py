"""Sample the posterior of all rows by a method that reads few rows per step: one call for all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.check import Certify, certify_options
from shardmc.data.blocks import ArrayBlocks
from shardmc.engine import Engine
from shardmc.errors import OptionError, SamplingError, unknown
from shardmc.field.gradients import SGHMC, SGLD
from shardmc.field.method import (
    Expanded,
    Minibatches,
    RowPosterior,
    Subsampler,
    Tuned,
    batches_of,
    open_job,
    rows_in_memory,
)
from shardmc.field.method import State as ChainState
from shardmc.field.metropolis import Austerity, Confidence
from shardmc.model import Model, Recipe
from shardmc.pipeline.checking import CheckDraws, score_of_blocks
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.fitting import FrontEnd
from shardmc.pipeline.progress import shows_progress
from shardmc.pipeline.stage import Job, Log, PosteriorDraws, Stage, State, known
from shardmc.pipeline.stages import ChoosePrecision, Locate
from shardmc.posterior import Plan, Posterior
from shardmc.programs.compiled import jit
from shardmc.sample import Auto, Sampled, ShardChains
from shardmc.seeds import Purpose, generator
from shardmc.target import DeviceFrame
from shardmc.types import Data, Finding, Located, Progress, RowValues, Tree

METHODS: dict[str, Callable[[], Subsampler]] = {
    "sgld": SGLD,
    "sgld-cv": partial(SGLD, control_variates=True),
    "sghmc": SGHMC,
    "sghmc-cv": partial(SGHMC, control_variates=True),
    "austerity": Austerity,
    "confidence": Confidence,
    "confidence-proxies": partial(Confidence, proxies=True),
}
"""Every subsampling method by name, with the function that makes it with its defaults."""

_PARTS = 20
"""A run is cut into this many calls of the compiled program, so that progress can be shown."""


@shows_progress
def subsample(
    model: Recipe | FrontEnd,
    data: Data,
    method: str | Subsampler = "sgld-cv",
    *,
    draws: int = 10_000,
    seed: int = 0,
    weights: RowValues = None,
    engine: Engine | None = None,
    check: bool = True,
    certify: Certify | bool = True,
    precision: str = "auto",
    progress: Progress | bool | None = None,
    **options: object,
) -> Posterior:
    """Draw from the posterior of all rows by a method that reads only some of them in every step.

    The mode and curvature of all rows, which `fit` finds as well, are the starting point, the preconditioner and the
    scale of the steps. The result is certified as `fit`'s is: that shows the bias of methods that have one.

    Parameters
    ----------
    model, data, draws, seed, weights, engine, check, certify, precision, progress
        As in `fit`. The rows must fit in memory. The engine finds the mode and computes the certificate; the chains run
        in this process.
    method
        A method of `shardmc.field`, or its name: "sgld", "sgld-cv", "sghmc", "sghmc-cv", "austerity", "confidence",
        "confidence-proxies".
    options
        Options of the method, such as minibatch=500.

    Returns
    -------
    Posterior
        It has one shard, which holds all rows. `posterior.passes` counts the row evaluations of every stage exactly,
        divided by the number of rows.

    Examples
    --------
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=20_000)
    >>> model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> posterior = subsample(model, y, "sgld-cv", draws=1_000, minibatch=50)
    >>> bool(abs(posterior.draws["mu"].mean() - y.mean()) < 0.001)
    True
    >>> subsample(model, y, "sgdl")
    Traceback (most recent call last):
        ...
    shardmc.errors.OptionError: Unknown method 'sgdl'. Did you mean 'sgld'? Valid: ...
    """
    chosen = named_method(method, **options)
    certified = certify_options(certify, check)
    if certified is not None and certified.rows not in ("auto", 1):
        raise OptionError("subsample certifies with all rows: leave out rows= of shardmc.Certify.")
    driver = Driver(progress=progress)
    front_end, job = open_job(
        driver,
        model,
        data,
        Auto(),
        shards="auto",
        draws=draws,
        seed=seed,
        weights=weights,
        engine=engine,
        certify=certified,
        precision=precision,
    )
    stages = (ChoosePrecision(), Locate(), SubsampleRows(chosen), CheckDraws(score=_score_of_all_shards))
    state = driver.run(job, stages)
    plan = Plan(
        rows=job.blocks.num_rows,
        shards=1,
        seed=job.seed,
        method=repr(chosen),
        draws=int(draws),
        weighted=weights is not None,
    )
    return _advised(front_end.finish(driver.posterior(job, state, plan)), chosen.advice)


def _advised(posterior: Posterior, advice: str) -> Posterior:
    """The posterior with advice for this method in place of advice about shards and their samplers."""

    def fits(text: str) -> bool:
        return re.search(r"\b(shards?|sampler)\b", text) is None

    def better(finding: Finding) -> Finding:
        return finding if fits(finding.advice) else replace(finding, advice=advice)

    certificate = posterior.certificate
    if certificate is not None and not fits(certificate.advice):
        certificate = replace(certificate, advice=advice)
    return replace(posterior, certificate=certificate, findings=tuple(map(better, posterior.findings)))


def named_method(method: str | Subsampler, **options: object) -> Subsampler:
    """A subsampling method by name, or one that was given, with these options.

    >>> named_method("sgld", minibatch=20).minibatch
    20
    """
    if isinstance(method, Subsampler):
        made, name = method, type(method).__name__
    elif isinstance(method, str) and method in METHODS:
        made, name = METHODS[method](), method
    else:
        raise unknown("method", method, METHODS)
    valid = [f.name for f in fields(made)]  # pyright: ignore[reportArgumentType]
    for option in options:
        if option not in valid:
            raise unknown(f"option of method {name!r}", option, valid)
    return replace(made, **options)  # pyright: ignore[reportArgumentType]


def _score_of_all_shards(job: Job, state: State):
    """Gradients by the shards in which the mode was found, although the draws come from one shard."""
    return score_of_blocks(job, replace(state, blocks=job.blocks, shards=job.blocks))


@final
@dataclass(frozen=True, eq=False)
class SubsampleRows(Stage):
    """Run the chains of a subsampling method. Afterwards there is one shard, which holds all rows."""

    name = "subsample"
    method: Subsampler

    def run(self, job: Job, state: State, log: Log) -> State:
        mode, method = known(state.mode), self.method
        shuffled = generator(job.seed, Purpose.SHUFFLE_ROWS)
        blocks = rows_in_memory(job.blocks)
        data = Minibatches.of(blocks, method.minibatch, shuffled)
        evaluations, at_mode = 0, Expanded.unknown(job.model.dim)
        if method.needs_expansion:
            at_mode = Expanded.of(job.model, job.blocks, mode.frame, job.engine)
            evaluations = data.num_rows
        posterior = RowPosterior(job.model, data, DeviceFrame.of(mode.frame), at_mode)
        key_tune, key_run = jax.random.split(jax.random.fold_in(jax.random.key(job.seed), Purpose.SUBSAMPLE))
        tuned = method.tune(posterior, key_tune)
        ran = run_chains(method, posterior, tuned, key_run, job.draws_per_shard, log.counter(_PARTS))
        evaluations += tuned.evaluations + ran.evaluations
        theta = mode.frame.to_theta(ran.u)
        if not np.isfinite(theta).all():
            raise SamplingError(
                f"{type(method).__name__} diverged: some draws are not finite. {method.advice}"
            )
        flat = theta.reshape(-1, job.model.dim)
        chains = ShardChains(theta, ran.acceptance, 0, type(method).__name__)
        passes = evaluations / data.num_rows
        return state.after(
            self,
            passes=passes,
            blocks=_one_shard(blocks),
            shards=_one_shard(blocks),
            located=Located(mode, mode.theta[None], mode.curvature[None], np.ones(1, bool)),
            sampled=Sampled((chains,), "rescaled", passes),
            combined=PosteriorDraws(flat, job.model.constrain_draws(flat), None),
            notes=(*state.notes, *tuned.notes),
        )


def _one_shard(blocks: ArrayBlocks) -> ArrayBlocks:
    return ArrayBlocks(blocks.rows, blocks.row_weights, np.array([blocks.num_rows]), np.zeros(1, np.int64))


@dataclass(frozen=True)
class SubsampledChains:
    """Draws of all chains in whitened coordinates, and what they cost."""

    u: np.ndarray  # (chain, draw, dim)
    evaluations: int
    acceptance: float


def run_chains(
    method: Subsampler,
    posterior: RowPosterior,
    tuned: Tuned,
    key: jax.Array,
    num_draws: int,
    on_part: Callable[[int], None] | None = None,
) -> SubsampledChains:
    """At least `num_draws` draws, by chains that start from standard normal points."""
    key_start, key_run = jax.random.split(key)
    starts = jax.random.normal(key_start, (method.chains, posterior.dim))
    states = jax.vmap(method.start)(starts)
    each = math.ceil(num_draws / method.chains)
    u, evaluations, accepted = [], 0, []
    for part, length in enumerate(batches_of(method.warmup + each, _PARTS)):
        keys = jax.random.split(jax.random.fold_in(key_run, part), method.chains)
        states, (drawn, rows, acceptance) = _run(
            posterior.model,
            method,
            length,
            (posterior.data, posterior.frame, posterior.at_mode),
            (tuned.values, tuned.thin),
            states,
            keys,
        )
        u.append(np.asarray(drawn, np.float64))
        evaluations += int(np.asarray(rows, np.int64).sum())
        accepted.append(np.asarray(acceptance))
        if on_part is not None:
            on_part(part)
    kept = np.concatenate(u, axis=1)[:, -each:]
    return SubsampledChains(kept, evaluations, float(np.concatenate(accepted, axis=1).mean()))


_Drawn = tuple[jax.Array, jax.Array, jax.Array]
"""Position, rows evaluated and mean acceptance of draws."""


@partial(jit, static_argnums=(0, 1, 2))
def _run(
    model: Model,
    method: Subsampler,
    length: int,
    parts: tuple[Minibatches, DeviceFrame, Expanded],
    tuned: tuple[Tree, int],
    states: ChainState,
    keys: jax.Array,
) -> tuple[ChainState, _Drawn]:
    """`length` draws of every chain, each after `thin` steps; rows evaluated and mean acceptance of each draw."""
    posterior = RowPosterior(model, *parts)
    values, thin = tuned

    def draw(state: ChainState, key: jax.Array) -> tuple[ChainState, _Drawn]:
        def one(
            i: jax.Array, carry: tuple[ChainState, jax.Array, jax.Array]
        ) -> tuple[ChainState, jax.Array, jax.Array]:
            state, rows, accepted = carry
            state, stepped = method.step(posterior, values, jax.random.fold_in(key, i), state)
            return state, rows + stepped.evaluations, accepted + stepped.acceptance

        state, rows, accepted = lax.fori_loop(0, thin, one, (state, jnp.int32(0), jnp.zeros(())))
        return state, (state[0], rows, accepted / thin)

    def chain(state: ChainState, key: jax.Array) -> tuple[ChainState, _Drawn]:
        return lax.scan(draw, state, jax.random.split(key, length))

    with jax.default_matmul_precision("highest"):
        if method.together:
            return jax.vmap(chain)(states, keys)
        return lax.map(lambda each: chain(*each), (states, keys))
