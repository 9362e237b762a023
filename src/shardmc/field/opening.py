"""What the calls of this package do first: check the options, read and split the rows, and say what to compute."""

from __future__ import annotations

from typing import Any

from shardmc.check import Certify
from shardmc.combiners import Recenter
from shardmc.data import Partition, as_source
from shardmc.engine import Engine, Local
from shardmc.locate import asked_precision, precision_of_rows
from shardmc.model import Recipe
from shardmc.pipeline.counts import number_of_shards
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.fitting import FrontEnd, as_front_end, check_options
from shardmc.pipeline.stage import Job
from shardmc.sample import Auto, Sampler


def open_job(
    driver: Driver,
    model: Recipe | FrontEnd,
    data: Any,
    sampler: Sampler | Auto,
    *,
    shards: int | str,
    draws: int,
    seed: int,
    weights: Any,
    engine: Engine | None,
    certify: Certify | None,
    precision: str,
    stratify: Any = None,
    shuffled: bool | None = None,
) -> tuple[FrontEnd, Job]:
    """The model as a front end, and the job: the options are those of `fit`."""
    check_options(draws, seed, None, certify is not None, polish=False)
    precision, front_end = asked_precision(precision), as_front_end(model)
    with precision_of_rows(precision):
        rows, bound = driver.timed("read", front_end.open, as_source(data), int(seed))
        count = number_of_shards(shards, rows, bound.dim, int(draws))
        partition = Partition(count, stratify=stratify, weights=weights)
        blocks = driver.timed("split", rows.split, partition, int(seed))
    job = Job(
        model=bound,
        blocks=blocks,
        engine=Local() if engine is None else engine,
        seed=int(seed),
        combiner=Recenter(),
        sampler=sampler,
        draws_per_shard=int(draws),
        precision=precision,
        certify=certify,
        shuffled=shuffled,
    )
    return front_end, job
