"""The stages from a partition to draws: precision, mode, kept rows, shards' modes, shards' draws, combined draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from shardmc.data.grouped import GroupedBlocks
from shardmc.engine import ProgramCall
from shardmc.errors import ModelError, SamplingError
from shardmc.locate import (
    Choice,
    choose_precision,
    influential,
    influential_call,
    locate,
    locate_shards,
    newton_steps,
)
from shardmc.model import Model
from shardmc.pipeline.counts import Nodes
from shardmc.pipeline.grouping import recentered
from shardmc.pipeline.stage import Job, Log, PosteriorDraws, Stage, State, known
from shardmc.sample import Sampled, sample, sample_calls
from shardmc.seeds import Purpose, generator
from shardmc.types import Frame, Located, Mode, ShardDraws, ShardTerms


@final
@dataclass(frozen=True, eq=False)
class ChoosePrecision(Stage):
    """Choose the precision: the one asked for, or the one that rounding requires.

    `near` is a point near the mode, with the posterior's scale there, where it is known.
    """

    name = "precision"
    near: Frame | None = None

    def run(self, job: Job, state: State, log: Log) -> State:
        choice = choose_precision(job.precision, job.model, state.shards, job.engine, self.near)
        return state.after(self, precision=choice)


@final
class Locate(Stage):
    """Find the mode and curvature of all rows. A sampler that needs no mode continues without one."""

    name = "locate"

    def run(self, job: Job, state: State, log: Log) -> State:
        start = None if state.precision is None else state.precision.start
        try:
            mode = locate(job.model, state.blocks, job.engine, start=start)
        except ModelError as error:
            if job.sampler.needs_mode:
                raise
            if job.mode_for:
                raise ModelError(f"{error} The options {job.mode_for} need a mode.") from error
            return state
        return state.after(self, passes=mode.passes, mode=mode)


@final
class KeepRows(Stage):
    """Keep the rows of high leverage in every shard."""

    name = "keep"

    def applies(self, job: Job, state: State) -> bool:
        return job.keep is not None and state.mode is not None

    def run(self, job: Job, state: State, log: Log) -> State:
        found = influential(job.model, state.blocks, known(state.mode), job.engine, known(job.keep))
        shards = state.shards.keep(found.positions)
        return state.after(self, passes=found.passes, kept=found.positions, shards=shards)

    def programs(self, job: Job, state: State) -> Iterable[ProgramCall]:
        if job.keep is not None:
            yield influential_call(job.model, state.blocks, job.keep)


@final
class LocateShards(Stage):
    """Find the mode and curvature of every shard; they are kept with the mode of all rows and the kept rows."""

    name = "locate shards"
    part = "located"

    def applies(self, job: Job, state: State) -> bool:
        return state.mode is not None

    def run(self, job: Job, state: State, log: Log) -> State:
        located = locate_shards(job.model, state.shards, known(state.mode), job.engine)
        return state.after(self, passes=located.passes, located=located)

    def save(self, state: State) -> dict[str, np.ndarray]:
        located, kept = known(state.located), state.kept
        positions = [np.empty(0, np.int64)] * located.num_shards if kept is None else kept
        nodes = {} if state.nodes is None else {"nodes": np.array(state.nodes)}
        known_curvatures = located.mode.shard_curvatures
        at_mode = {} if known_curvatures is None else {"shard_curvatures_at_mode": known_curvatures}
        terms = located.mode.shard_terms
        of_terms = {} if terms is None else {f"terms_{name}": values for name, values in vars(terms).items()}
        return {
            **nodes,
            **at_mode,
            **of_terms,
            "mode": located.mode.theta,
            "curvature": located.mode.curvature,
            "decrement": np.array(located.mode.decrement),
            "shard_modes": located.shard_modes,
            "shard_curvatures": located.shard_curvatures,
            "found": located.found,
            "kept_positions": np.concatenate([*positions, np.empty(0, np.int64)]).astype(np.int64),
            "kept_counts": np.array([len(p) for p in positions], np.int64),
            "precision": known(state.precision).to_array(),
        }

    def load(self, job: Job, state: State, arrays: Mapping[str, np.ndarray]) -> State:
        terms = None
        if "terms_point" in arrays:
            terms = ShardTerms(*(arrays[f"terms_{name}"] for name in ("point", "gradients", "curvatures")))
        located = Located(
            Mode(
                arrays["mode"],
                arrays["curvature"],
                float(arrays["decrement"]),
                0.0,
                shard_curvatures=arrays.get("shard_curvatures_at_mode"),
                shard_terms=terms,
            ),
            arrays["shard_modes"],
            arrays["shard_curvatures"],
            arrays["found"],
        )
        kept = np.split(arrays["kept_positions"], np.cumsum(arrays["kept_counts"])[:-1])
        precision = Choice.from_array(arrays["precision"], job.precision)
        blocks, nodes = state.blocks, None
        if isinstance(blocks, GroupedBlocks):
            nodes = Nodes(*map(int, arrays["nodes"]))
            with precision.applied():
                blocks = recentered(job, blocks, located.mode.theta, nodes)
        return state.after(
            self,
            precision=precision,
            mode=located.mode,
            nodes=nodes,
            kept=kept,
            blocks=blocks,
            shards=blocks.keep(kept),
            located=located,
        )


@final
class SampleShards(Stage):
    """Draw from every shard's subposterior; every shard is kept as soon as it is finished."""

    name = "sample"

    def run(self, job: Job, state: State, log: Log) -> State:
        sampled = sample(
            job.model,
            state.shards,
            state.located,
            job.sampler,
            job.engine,
            num_draws=job.draws_per_shard,
            seed=job.seed,
            scaling=job.combiner.scaling,
            done=log.finished(),
            on_shard=log.write,
            part=log.part,
        )
        return state.after(self, passes=sampled.passes, sampled=sampled, notes=(*state.notes, *sampled.notes))

    def programs(self, job: Job, state: State) -> Iterable[ProgramCall]:
        # There is room for kept rows from the start, but not among groups, which come with their centres.
        if state.blocks.kept is not None or (
            state.mode is not None and (job.keep is None or state.kept is not None)
        ):
            yield from sample_calls(
                job.model, state.shards, job.sampler, job.draws_per_shard, job.combiner.scaling, job.engine
            )


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
        f"{len(failed)} of {count} shards failed and {'is' if len(failed) == 1 else 'are'} missing from the result "
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
