"""From sampled shards to combined draws on both scales, and the checks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from shardmc.check import Certificate, Certify, agree, certify, choose, diagnose, ordered
from shardmc.data import Blocks
from shardmc.errors import SamplingError
from shardmc.locate import gradients, newton_steps
from shardmc.model import Model
from shardmc.posterior import ShardTable
from shardmc.sample import Sampled
from shardmc.types import Combiner, Engine, Finding, Located, Mode, ShardDraws

_LOOKED_AT = 20_000
"""Draws, evenly over the shards, that the certificate looks at: their own noise is 0.007 sd, far below its bounds."""


@dataclass(frozen=True)
class Result:
    """Combined draws on the unconstrained and the natural scale."""

    theta: np.ndarray  # (draw, dim); NaN rows where a draw left the support
    natural: Mapping[str, np.ndarray]
    shard: np.ndarray | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """What the checks say."""

    shards: ShardTable
    certificate: Certificate | None
    certified_at: np.ndarray | None  # (chosen,) the draws at which the certificate took its gradients
    findings: tuple[Finding, ...]
    passes: float


def combine_sampled(
    model: Model,
    blocks: Blocks,
    combiner: Combiner,
    sampled: Sampled,
    located: Located | None,
    engine: Engine,
    seed: int,
) -> Result:
    """Run the combiner on the scale that it works on, and express its draws on both."""
    good = sampled.good
    if len(good) == 0:
        raise SamplingError(f"No shard could be sampled; shard 0: {sampled.chains[0].failure}")
    notes: tuple[str, ...] = ()
    if len(good) < len(sampled.chains):
        lost = [i for i in range(len(sampled.chains)) if i not in set(good)]
        notes = (
            f"{len(lost)} of {len(sampled.chains)} shards failed and are missing from the result "
            f"(shard {lost[0]}: {sampled.chains[lost[0]].failure})",
        )
    draws = sampled.draws()
    where = None if located is None else located.subset(good)
    rng = np.random.default_rng([seed, 3])
    if combiner.space == "unconstrained":
        settled = combiner.settled(
            draws, lambda start, steps: newton_steps(model, blocks, start, steps, engine)
        )
        combined = settled(draws, where, rng)
        theta, natural = combined.values, model.constrain_draws(combined.values)
    else:
        moved = ShardDraws.of([model.natural_vector(v) for v in draws.values], draws.shares, draws.scaling)
        combined = combiner(moved, None, rng)
        theta, natural = _from_natural(model, combined.values)
        outside = int(np.isnan(theta).any(axis=1).sum())
        if outside:
            notes += (f"{outside} of {len(theta)} combined draws lie outside the parameters' support.",)
    shard = None if combined.shard is None else good[combined.shard]
    return Result(theta, natural, shard, (*notes, *combined.notes))


def _from_natural(model: Model, values: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    natural, start = {}, 0
    for name, parameter in model.parameters.items():
        size = int(np.prod(parameter.shape))
        natural[name] = values[:, start : start + size].reshape(-1, *parameter.shape)
        start += size
    return model.unconstrained_vector(values), natural


def judge(
    model: Model,
    blocks: Blocks,
    located: Located | None,
    sampled: Sampled,
    result: Result,
    engine: Engine,
    seed: int,
    *,
    certified: Certify | None,
    score: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Judged:
    """Chain diagnostics, shard agreement and, where there is a mode, the certificate.

    The certificate's gradients of the log posterior are those of the blocks, or what `score` says of points.
    """
    names = model.names
    with ThreadPoolExecutor(1) as pool:
        # The chains are looked at while the device is busy with the gradients.
        diagnosis = pool.submit(
            diagnose,
            [c.theta for c in sampled.chains],
            np.array([c.acceptance for c in sampled.chains]),
            np.array([c.divergences for c in sampled.chains]),
            names,
        )
        certificate, certified_at, passes = None, None, 0.0
        if certified is not None and located is not None:
            known = score or (lambda points: gradients(model, blocks, located.mode, points, engine))
            certificate, certified_at = certify_result(
                model,
                known,
                located.mode,
                result,
                np.random.default_rng([seed, 4]),
                lambda: diagnosis.result().total_ess,
                options=certified,
            )
            passes = float(len(certified_at))
        chains = diagnosis.result()
    findings = [*chains.findings, *([] if certificate is None else verdict_findings(certificate))]
    disagreement = None
    if located is not None and located.num_shards > 1:
        agreement = agree(located, blocks.sizes, names)
        findings += agreement.findings
        disagreement = agreement.q
    most = max(c.theta.shape[0] * c.theta.shape[1] for c in sampled.chains)
    own = np.full((len(sampled.chains), most, model.dim), np.nan)
    for i, c in enumerate(sampled.chains):
        flat = c.theta.reshape(-1, model.dim)
        own[i, : len(flat)] = flat
    table = ShardTable(
        share=sampled.shares,
        size=np.asarray(blocks.sizes),
        acceptance=np.array([c.acceptance for c in sampled.chains]),
        divergences=np.array([c.divergences for c in sampled.chains]),
        ess=chains.ess,
        r_hat=chains.r_hat,
        sampler=tuple(c.sampler for c in sampled.chains),
        draws=own,
        mode=None if located is None else located.shard_modes,
        disagreement=disagreement,
    )
    return Judged(table, certificate, certified_at, tuple(ordered(findings)), passes)


def certify_result(
    model: Model,
    score: Callable[[np.ndarray], np.ndarray],
    mode: Mode,
    result: Result,
    rng: np.random.Generator,
    effective: Callable[[], np.ndarray],
    exclude: np.ndarray | None = None,
    options: Certify | None = None,
) -> tuple[Certificate, np.ndarray]:
    """The certificate of a result, and which draws it took the gradients at: none of `exclude`.

    `effective` says how many draws the result is worth, per coordinate; it is asked after the gradients. Where
    these cannot tell and more would help, more are taken, as far as the options allow.
    """
    inside = np.flatnonzero(np.isfinite(result.theta).all(axis=1))
    if len(inside) > _LOOKED_AT:
        inside = inside[np.linspace(0, len(inside) - 1, _LOOKED_AT).astype(int)]
    theta = result.theta[inside]
    shard = None if result.shard is None else result.shard[inside]
    barred = np.empty(0, dtype=int) if exclude is None else np.searchsorted(inside, exclude)
    chosen, scores, certificate = np.empty(0, dtype=int), np.empty((0, theta.shape[1])), None
    options = Certify() if options is None else options
    for count in options.stages(len(theta) - len(barred)):
        more = choose(theta, shard, count - len(chosen), rng, np.concatenate([barred, chosen]))
        chosen, scores = np.concatenate([chosen, more]), np.concatenate([scores, score(theta[more])])
        ess = effective()
        known = ess if np.isfinite(ess).all() and (ess > 0).all() else None
        certificate = certify(
            theta, chosen, scores, mode, model.names, ess=known, bounds=options.bounds, rng=rng, shard=shard
        )
        if certificate.remedy != "gradients":
            break
    assert certificate is not None
    return certificate, inside[chosen]


def verdict_findings(certificate: Certificate) -> list[Finding]:
    """What the verdict adds to the findings: nothing where all is well."""
    if certificate.verdict == "within":
        return []
    level = "error" if certificate.verdict == "off" else "warning"
    return [Finding(level, "certificate", certificate.sentence, certificate.advice)]
