"""Polishing of a result: its draws on both scales, their new certificate and what the checks say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardmc.check import Certificate, Certify, Polished, ordered, polish_draws
from shardmc.check.measured import FEWEST_GRADIENTS
from shardmc.data import Blocks
from shardmc.judge import Judged, Result, certify_result, verdict_findings
from shardmc.locate import gradients
from shardmc.model import Model
from shardmc.types import Engine, Located


@dataclass(frozen=True)
class Mended:
    """A result and what the checks say of it, after polishing."""

    result: Result
    judged: Judged
    polished: Polished | None
    """None where there was no certificate to polish by."""
    passes: float


def mend(
    model: Model,
    blocks: Blocks,
    located: Located | None,
    result: Result,
    judged: Judged,
    engine: Engine,
    seed: int,
    options: Certify,
) -> Mended:
    """Apply the certificate's correction to the combined draws and certify them again, at other draws each time."""
    certificate, certified_at = judged.certificate, judged.certified_at
    if located is None or certificate is None or certified_at is None:
        note = "Nothing was polished: without a mode of all rows there is no certificate to polish by."
        return Mended(replace(result, notes=(*result.notes, note)), judged, None, 0.0)
    inside = np.flatnonzero(np.isfinite(result.theta).all(axis=1))
    rng = np.random.default_rng([seed, 6])
    used, passes = certified_at, 0.0

    def again(values: np.ndarray) -> Certificate | None:
        nonlocal used, passes
        if len(inside) - len(used) < FEWEST_GRADIENTS:
            return None
        moved = replace(result, theta=_filled(result.theta, inside, values))
        fresh, chosen = certify_result(
            model,
            lambda points: gradients(model, blocks, located.mode, points, engine),
            located.mode,
            moved,
            rng,
            lambda: certificate.ess,
            exclude=used,
            options=options,
        )
        used, passes = np.concatenate([used, chosen]), passes + len(chosen)
        return fresh

    values, fresh, polished = polish_draws(result.theta[inside], certificate, again)
    if polished.rounds:
        result = replace(
            result,
            theta=_filled(result.theta, inside, values),
            natural=_natural(model, result.natural, inside, values),
        )
    others = [finding for finding in judged.findings if finding.check != "certificate"]
    findings = tuple(ordered([*others, *verdict_findings(fresh)]))
    return Mended(result, replace(judged, certificate=fresh, findings=findings), polished, passes)


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
