"""The stage that combines the shards' draws, and expresses the result on both scales."""

from __future__ import annotations

from typing import final

import numpy as np

from shardmc.errors import SamplingError
from shardmc.locate import newton_steps
from shardmc.model import Model
from shardmc.pipeline.stage import Job, Log, PosteriorDraws, Stage, State, known
from shardmc.sample import Sampled
from shardmc.seeds import Purpose, generator
from shardmc.types import ShardDraws


@final
class Combine(Stage):
    """Combine the draws of all shards that have draws, on the scale that the combiner needs."""

    name = "combine"

    def run(self, job: Job, state: State, log: Log) -> State:
        sampled, model, combiner = known(state.sampled), job.model, job.combiner
        notes = [*state.notes, *_failures(sampled)]
        draws, good = sampled.draws(state.blocks.shares), sampled.good
        rng = generator(job.seed, Purpose.COMBINE)
        if combiner.space == "unconstrained":
            settled = combiner.settled(
                draws, lambda start, steps: newton_steps(model, state.blocks, start, steps, job.engine)
            )
            combined = settled(draws, None if state.located is None else state.located.subset(good), rng)
            theta, natural = combined.values, model.constrain_draws(combined.values)
        else:
            values = [model.natural_vector(v) for v in draws.values]
            combined = combiner(ShardDraws.of(values, draws.shares, draws.scaling), None, rng)
            theta, natural = _from_natural(model, combined.values)
            outside = int(np.isnan(theta).any(axis=1).sum())
            if outside:
                notes.append(f"{outside} of {len(theta)} combined draws lie outside the parameters' support.")
        shard = None if combined.shard is None else good[combined.shard]
        found = PosteriorDraws(theta, natural, shard)
        return state.after(self, combined=found, notes=(*notes, *combined.notes))


def _failures(sampled: Sampled) -> list[str]:
    """A note on the shards without draws, or an error if all shards are without draws."""
    good, count = set(sampled.good), len(sampled.chains)
    if not good:
        raise SamplingError(f"No shard could be sampled; shard 0: {sampled.chains[0].failure}")
    failed = [i for i in range(count) if i not in good]
    if not failed:
        return []
    return [
        f"{len(failed)} of {count} shards failed and are missing from the result "
        f"(shard {failed[0]}: {sampled.chains[failed[0]].failure})"
    ]


def _from_natural(model: Model, values: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Draws (draw, size) on the natural scale as unconstrained draws, and by the parameters' names."""
    natural, start = {}, 0
    for name, parameter in model.parameters.items():
        size = int(np.prod(parameter.shape))
        natural[name] = values[:, start : start + size].reshape(-1, *parameter.shape)
        start += size
    return model.unconstrained_vector(values), natural
