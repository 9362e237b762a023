"""The run folder as the driver uses it: results so far, and those of an earlier, interrupted call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from shardmc.data import Source
from shardmc.model import Model
from shardmc.posterior import Plan, Posterior
from shardmc.sample import ShardChains
from shardmc.store.records import Manifest
from shardmc.store.run import Run


class Folder:
    """A run folder, locked during the whole run. Without a path nothing is kept or found."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._run = None if path is None else Run(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None:
            self._run.close()

    def expect(self, source: Source, plan: Mapping[str, Any]) -> None:
        """Refuse a folder that belongs to other rows or another plan, before a row is read."""
        if self._run is not None:
            self._run.expect(plan, source.fingerprint, source.num_rows)

    def begin(self, source: Source, model: Model, plan: Plan) -> None:
        """Start the run in the folder, or resume the same one; refuse another."""
        if self._run is not None:
            self._run.begin(Manifest(plan.to_dict(), data=source.fingerprint, model=model.fingerprint))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found in the folder."""
        return () if self._run is None else tuple(self._run.notes)

    def finished(self) -> dict[int, ShardChains]:
        """The shards that an earlier call finished."""
        if self._run is None:
            return {}
        return {i: ShardChains.from_arrays(self._run.read(i)) for i in self._run.finished()}

    def write(self, shard: int, chains: ShardChains) -> None:
        """Keep one finished shard, or why it failed."""
        if self._run is None:
            return
        if chains.failure:
            self._run.write_failure(shard, chains.failure)
        else:
            self._run.write(shard, chains.arrays())

    def read_part(self, name: str) -> Mapping[str, np.ndarray] | None:
        """What a stage of an earlier call saved; None if there is nothing, or nothing intact."""
        return None if self._run is None else self._run.read_part(name)

    def write_part(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep what a stage saves."""
        if self._run is not None:
            self._run.write_part(name, arrays)

    def write_posterior(self, posterior: Posterior) -> None:
        """Keep the result."""
        if self._run is not None:
            posterior.save(self._run.path("posterior.nc"))
