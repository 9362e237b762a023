"""The stages from a partition to draws of every shard: precision, mode, kept rows, shards' modes, draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from shardmc.errors import ModelError
from shardmc.locate import (
    Choice,
    choose_precision,
    influential,
    influential_call,
    locate,
    locate_shards,
)
from shardmc.pipeline.stage import Job, Log, Stage, State, known
from shardmc.sample import sample, sample_call
from shardmc.types import Frame, Located, Mode, ProgramCall


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
        except ModelError:
            if job.sampler.needs_mode:
                raise
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
        return {
            "mode": located.mode.theta,
            "curvature": located.mode.curvature,
            "decrement": np.array(located.mode.decrement),
            "shard_modes": located.shard_modes,
            "shard_curvatures": located.shard_curvatures,
            "shard_decrements": located.decrements,
            "found": located.found,
            "kept_positions": np.concatenate([*positions, np.empty(0, np.int64)]).astype(np.int64),
            "kept_counts": np.array([len(p) for p in positions], np.int64),
            "precision": known(state.precision).to_array(),
        }

    def load(self, job: Job, state: State, arrays: Mapping[str, np.ndarray]) -> State:
        located = Located(
            Mode(arrays["mode"], arrays["curvature"], float(arrays["decrement"]), 0.0),
            state.blocks.shares,
            arrays["shard_modes"],
            arrays["shard_curvatures"],
            arrays["shard_decrements"],
            arrays["found"],
        )
        kept = np.split(arrays["kept_positions"], np.cumsum(arrays["kept_counts"])[:-1])
        return state.after(
            self,
            precision=Choice.from_array(arrays["precision"], job.precision),
            mode=located.mode,
            kept=kept,
            shards=state.shards.keep(kept),
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
            on_progress=log.counter(state.shards.num_shards),
        )
        return state.after(self, passes=sampled.passes, sampled=sampled, notes=(*state.notes, *sampled.notes))

    def programs(self, job: Job, state: State) -> Iterable[ProgramCall]:
        if state.mode is not None and (job.keep is None or state.kept is not None):
            yield sample_call(
                job.model, state.shards, job.sampler, job.draws_per_shard, job.combiner.scaling, job.engine
            )
