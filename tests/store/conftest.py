"""A small run, shared by the tests of the store."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardmc.store.records import Manifest
from shardmc.store.run import Run

NUM_SHARDS = 5


@pytest.fixture
def manifest() -> Manifest:
    plan = {"shards": NUM_SHARDS, "draws": 8, "seed": 0, "combiner": {"name": "recenter", "center": "mode"}}
    return Manifest(plan, data="d" * 16, model="m" * 16)


@pytest.fixture
def draws() -> Callable[[int], dict[str, np.ndarray]]:
    """The arrays of a shard."""

    def make(shard: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(shard)
        return {"draws": rng.normal(size=(8, 3)), "accepted": rng.random(8) < 0.5}

    return make


@pytest.fixture
def finished_run(tmp_path: Path, manifest: Manifest, draws: Callable[[int], dict[str, np.ndarray]]) -> Path:
    """A run folder with all shards done, and closed."""
    folder = tmp_path / "run"
    with Run.open(folder, manifest) as run:
        for shard in range(NUM_SHARDS):
            run.write(shard, draws(shard))
        run.write_part("located", {"mode": np.arange(3.0), "curvature": np.eye(3)})
    return folder
