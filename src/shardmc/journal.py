"""What a run leaves on disk as it goes, and what an earlier, interrupted call of the same run left there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardmc.data import Blocks, Source
from shardmc.model import Model
from shardmc.posterior import Posterior
from shardmc.sample import ShardChains
from shardmc.store.manifest import Manifest, package_versions
from shardmc.store.run import Run
from shardmc.types import Located, Mode


class Journal:
    """The run folder as `fit` sees it; without a folder it remembers nothing and finds nothing."""

    def __init__(
        self, path: str | Path | None, plan: Mapping[str, Any], source: Source, model: Model
    ) -> None:
        self._run: Run | None = None
        if path is not None:
            self._run = Run.open(path, Manifest(dict(plan), data=source.fingerprint, model=model.fingerprint))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None:
            self._run.close()

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self._run is None else tuple(self._run.notes)

    @property
    def versions(self) -> Mapping[str, str]:
        return package_versions()

    def finished(self) -> dict[int, ShardChains]:
        """Shards that an earlier call finished."""
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

    def precision(self) -> np.ndarray | None:
        """The precision that an earlier call found its modes in, as `Choice` writes it."""
        arrays = None if self._run is None else self._run.read_located()
        return None if arrays is None else arrays.get("precision")

    def located(self, blocks: Blocks) -> tuple[Blocks, Located] | None:
        """Modes, and blocks with their kept rows, where an earlier call found them."""
        arrays = None if self._run is None else self._run.read_located()
        if arrays is None:
            return None
        mode = Mode(arrays["mode"], arrays["curvature"], float(arrays["decrement"]), 0.0)
        located = Located(
            mode,
            blocks.shares,
            arrays["shard_modes"],
            arrays["shard_curvatures"],
            arrays["shard_decrements"],
            arrays["found"],
        )
        bounds = np.cumsum(arrays["kept_counts"])[:-1]
        return blocks.keep(np.split(arrays["kept_positions"], bounds)), located

    def write_located(self, located: Located, positions: Sequence[np.ndarray], precision: np.ndarray) -> None:
        """Keep the modes, which rows are kept in every shard, and the precision of all that."""
        if self._run is None:
            return
        self._run.write_located(
            {
                "mode": located.mode.theta,
                "curvature": located.mode.curvature,
                "decrement": np.array(located.mode.decrement),
                "shard_modes": located.shard_modes,
                "shard_curvatures": located.shard_curvatures,
                "shard_decrements": located.decrements,
                "found": located.found,
                "kept_positions": np.concatenate([*positions, np.empty(0, np.int64)]).astype(np.int64),
                "precision": precision,
                "kept_counts": np.array([len(p) for p in positions], np.int64),
            }
        )

    def write_posterior(self, posterior: Posterior) -> None:
        """Keep the result."""
        if self._run is not None:
            from shardmc.store.tree import save_tree

            save_tree(posterior.tree, self._run.path("posterior.nc"))
