"""The stages that check the draws, and correct them for the errors that the certificate measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

import numpy as np

from shardmc.check import (
    CHECKS,
    Certificate,
    Evidence,
    Outcome,
    Score,
    beside_certificate,
    certify_draws,
    ordered,
    polish_draws,
    verdict_findings,
)
from shardmc.check.advice import Remedies
from shardmc.check.measured import FEWEST_GRADIENTS
from shardmc.combiners.moments import pooled_count
from shardmc.data import Blocks
from shardmc.engine import Engine, ProgramCall
from shardmc.engine.engine import Program, T
from shardmc.locate import SampledGradients, gradients, gradients_call
from shardmc.model import Model
from shardmc.pipeline.stage import Checked, Job, Log, PosteriorDraws, Stage, State, known
from shardmc.posterior import ShardTable
from shardmc.programs.threads import Threads
from shardmc.seeds import Purpose, generator
from shardmc.types import Gradients, Tree


def score_of_blocks(job: Job, state: State) -> Score:
    """Gradients of the log posterior of the state's own rows, or of a sample of them."""
    if state.located is None:
        return _no_score
    mode, available = state.located.mode, state.blocks.num_shards
    first, count = _num_sampled(job, state)
    if count < available:
        chosen = generator(job.seed, Purpose.SAMPLE_ROWS).choice(available, count, replace=False)
        shards = state.shards.for_certificate
        terms = mode.shard_terms if _are_known(state) else None
        return SampledGradients(
            job.model, shards, mode, job.engine, chosen.tolist(), mode.shard_curvatures, terms, first
        )
    blocks = state.blocks.for_certificate
    return lambda points: Gradients(gradients(job.model, blocks, mode, points, job.engine))


def _are_known(state: State) -> bool:
    """Whether the terms that found the mode are those of the shards, with the same rows.

    The farther from the mode they are, the more the sampled shards differ, which the certificate takes into account.
    """
    mode = known(state.located).mode
    return not (mode.shard_terms is None or state.shards.of_groups or state.shards.num_kept)


def _num_sampled(job: Job, state: State) -> tuple[int, int]:
    """How many shards a gradient of the certificate reads, at first and at most. Shards in file order are all read."""
    available = state.blocks.num_shards
    if job.certify is None or (job.certify.rows == "auto" and not job.shuffled):
        return available, available
    return job.certify.num_shards(available)


@final
@dataclass(frozen=True)
class _Counted(Engine):
    """An engine that tells how many shards of each round of gradients are finished."""

    engine: Engine
    log: Log
    rounds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def map(
        self,
        program: Program[T],
        blocks: Blocks,
        per_shard: Tree,
        shared: Tree,
        shards: Sequence[int] | None = None,
        on_done: Callable[[int], None] | None = None,
        on_failure: Callable[[int, str], None] | None = None,
    ) -> Iterator[tuple[int, T]]:
        total = blocks.num_shards if shards is None else len(shards)
        advance = self.log.part(f"gradients, round {next(self.rounds)}", total)

        def done(shard: int) -> None:
            advance(1)
            if on_done is not None:
                on_done(shard)

        return self.engine.map(program, blocks, per_shard, shared, shards, done, on_failure)


def _no_score(points: np.ndarray) -> Gradients:
    raise AssertionError("Without a mode there is no certificate.")


@final
@dataclass(frozen=True, eq=False)
class CheckDraws(Stage):
    """Check the chains, the agreement of the shards and, if there is a mode, the distance from the posterior."""

    name = "check"
    modules = ("scipy.special", "scipy.fft")
    score: Callable[[Job, State], Score] = score_of_blocks
    """Makes the gradients of the log posterior of all rows."""

    def run(self, job: Job, state: State, log: Log) -> State:
        background: dict[str, Future[Outcome]] = {}
        counted = replace(job, engine=_Counted(job.engine, log))
        evidence = self._evidence(
            counted, state, lambda: _effective_draws(state, background["chains"].result().per_shard["ess"])
        )
        applicable = [check for check in CHECKS if check.applies(evidence)]
        threads = Threads(1, "shardmc-check")
        try:
            # These run while the device computes the gradients.
            background |= {
                c.name: threads.submit(partial(c, evidence)) for c in applicable if not c.reads_rows
            }
            outcomes = [check(evidence) for check in applicable if check.reads_rows]
            outcomes += [future.result() for future in background.values()]
        finally:
            threads.close()
        certified = next((outcome for outcome in outcomes if outcome.certificate is not None), Outcome(()))
        findings = [finding for outcome in outcomes for finding in outcome.findings]
        checked = Checked(
            _shard_table(state, evidence, outcomes),
            tuple(ordered(beside_certificate(findings, _is_within(certified.certificate)))),
            certified.certificate,
            certified.certified_at,
        )
        passes = (
            0.0 if certified.certified_at is None else _passes(evidence.score, len(certified.certified_at))
        )
        return state.after(self, passes=passes, checked=checked)

    def programs(self, job: Job, state: State) -> Iterable[ProgramCall]:
        if job.certify is not None and self.score is score_of_blocks:
            count = job.draws_per_shard
            if job.combiner.pools:
                count = pooled_count(count, state.blocks.shares)
            sampled = _num_sampled(job, state)[1] < state.blocks.num_shards
            blocks = (state.shards if sampled else state.blocks).for_certificate
            yield gradients_call(job.model, blocks, job.certify.stages(count)[0])

    def _evidence(self, job: Job, state: State, effective: Callable[[], np.ndarray]) -> Evidence:
        chains, combined = known(state.sampled).chains, known(state.combined)
        return Evidence(
            names=job.model.names,
            chains=[c.theta for c in chains],
            acceptance=np.array([c.acceptance for c in chains]),
            divergences=np.array([c.divergences for c in chains]),
            shares=state.blocks.shares,
            sizes=np.asarray(state.blocks.sizes),
            located=state.located,
            theta=combined.theta,
            shard=combined.shard,
            score=self.score(job, state),
            effective=effective,
            rng=generator(job.seed, Purpose.CERTIFY),
            certify=job.certify,
            options=job.options,
            shuffled=job.shuffled,
        )


def _effective_draws(state: State, ess: np.ndarray) -> np.ndarray:
    """The effective number of the combined draws, (dim,), given that of every shard's chains, (shard, dim).

    If every combined draw is made of draws of all shards, the combined draws are worth as much each as those are.
    """
    combined = known(state.combined)
    drawn = sum(chains.theta[..., 0].size for chains in known(state.sampled).chains)
    part = 1.0 if combined.shard is not None else min(1.0, len(combined.theta) / max(drawn, 1))
    return np.nansum(ess, axis=0) * part


def _passes(score: Score, num_gradients: int) -> float:
    """How often that many gradients evaluated all rows."""
    return score.passes if isinstance(score, SampledGradients) else float(num_gradients)


def _shard_table(state: State, evidence: Evidence, outcomes: Iterable[Outcome]) -> ShardTable:
    """One row per shard, with the columns that the checks add."""
    dim = len(evidence.names)
    flat = [theta.reshape(-1, dim) for theta in evidence.chains]
    draws = np.full((len(flat), max(map(len, flat)), dim), np.nan)
    for shard, values in enumerate(flat):
        draws[shard, : len(values)] = values
    columns = {name: values for outcome in outcomes for name, values in outcome.per_shard.items()}
    return ShardTable(
        share=evidence.shares,
        size=evidence.sizes,
        acceptance=evidence.acceptance,
        divergences=evidence.divergences,
        ess=columns.pop("ess"),
        r_hat=columns.pop("r_hat"),
        sampler=tuple(c.sampler for c in known(state.sampled).chains),
        draws=draws,
        mode=None if state.located is None else state.located.shard_modes,
        disagreement=columns.pop("disagreement", None),
        chains=np.array([len(theta) for theta in evidence.chains]),
        more=columns,
    )


_NO_MODE = "The draws were not polished: without a mode of all rows there is no certificate."


@final
class Polish(Stage):
    """Apply the certificate's correction, and certify the draws again, at other draws each time."""

    name = "polish"

    def applies(self, job: Job, state: State) -> bool:
        return job.polish

    def run(self, job: Job, state: State, log: Log) -> State:
        combined, checked = known(state.combined), known(state.checked)
        certificate, used = checked.certificate, checked.certified_at
        if certificate is None or used is None:
            return state.after(self, passes=0.0, notes=(*state.notes, _NO_MODE))
        mode = known(state.located).mode
        score = score_of_blocks(replace(job, engine=_Counted(job.engine, log)), state)
        remedies = Remedies(job.options, one_shard=state.blocks.num_shards == 1)
        inside = np.flatnonzero(np.isfinite(combined.theta).all(axis=1))
        rng, before = generator(job.seed, Purpose.POLISH), len(used)

        def again(values: np.ndarray) -> Certificate | None:
            nonlocal used
            assert used is not None
            if len(inside) - len(used) < FEWEST_GRADIENTS:
                return None
            theta = _filled(combined.theta, inside, values)
            fresh, chosen = certify_draws(
                job.model.names,
                score,
                mode,
                theta,
                combined.shard,
                rng,
                lambda: certificate.ess,
                exclude=used,
                options=job.certify,
                remedies=remedies,
            )
            used = np.concatenate([used, chosen])
            return fresh

        values, fresh, polished = polish_draws(combined.theta[inside], certificate, again, remedies)
        if polished.rounds:
            combined = PosteriorDraws(
                _filled(combined.theta, inside, values),
                _natural(job.model, combined.natural, inside, values),
                combined.shard,
            )
        others = [finding for finding in checked.findings if finding.check != "certificate"]
        beside = beside_certificate(others, _is_within(fresh))
        findings = tuple(ordered([*beside, *verdict_findings(fresh)]))
        return state.after(
            self,
            passes=_passes(score, len(used) - before),
            combined=combined,
            checked=replace(checked, certificate=fresh, findings=findings),
            polished=polished,
        )


def _is_within(certificate: Certificate | None) -> bool:
    return certificate is not None and certificate.verdict == "within"


def _filled(theta: np.ndarray, inside: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The draws with new values; those that left the support stay missing."""
    whole = theta.copy()
    whole[inside] = values
    return whole


def _natural(
    model: Model, old: Mapping[str, np.ndarray], inside: np.ndarray, values: np.ndarray
) -> dict[str, np.ndarray]:
    new = model.constrain_draws(values)
    return {name: _filled(np.asarray(draws), inside, np.asarray(new[name])) for name, draws in old.items()}
