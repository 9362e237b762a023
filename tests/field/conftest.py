"""A posterior that is Gaussian exactly, seen through minibatches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.field.method import Expanded, Minibatches, RowPosterior
from shardmc.locate import locate
from shardmc.target import DeviceFrame


def see(model: shardmc.Model, rows, minibatch: int, seed: int = 0) -> RowPosterior:
    """The posterior of a model through minibatches of its rows, with everything that a method may use."""
    blocks, engine = as_source(rows).split(Partition(1), 0), shardmc.Local()
    frame = locate(model, blocks, engine).frame
    data = Minibatches.of(blocks, minibatch, np.random.default_rng(seed))
    return RowPosterior(model, data, DeviceFrame.of(frame), Expanded.of(model, blocks, frame, engine))


@pytest.fixture(scope="session")
def through_minibatches() -> Callable[..., RowPosterior]:
    return see
