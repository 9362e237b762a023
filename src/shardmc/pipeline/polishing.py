"""The stage that corrects the draws for the errors that the certificate measured, and certifies them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

import numpy as np

from shardmc.check import Certificate, certify_draws, ordered, polish_draws, verdict_findings
from shardmc.check.measured import FEWEST_GRADIENTS
from shardmc.model import Model
from shardmc.pipeline.checking import score_of_blocks
from shardmc.pipeline.stage import Job, Log, PosteriorDraws, Stage, State, known
from shardmc.seeds import Purpose, generator

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
        mode, score = known(state.located).mode, score_of_blocks(job, state)
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
            )
            used = np.concatenate([used, chosen])
            return fresh

        values, fresh, polished = polish_draws(combined.theta[inside], certificate, again)
        if polished.rounds:
            combined = PosteriorDraws(
                _filled(combined.theta, inside, values),
                _natural(job.model, combined.natural, inside, values),
                combined.shard,
            )
        others = [finding for finding in checked.findings if finding.check != "certificate"]
        findings = tuple(ordered([*others, *verdict_findings(fresh)]))
        return state.after(
            self,
            passes=float(len(used) - before),
            combined=combined,
            checked=replace(checked, certificate=fresh, findings=findings),
            polished=polished,
        )


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
