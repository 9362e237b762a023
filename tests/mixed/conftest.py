"""What tests of mixed models share."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from shardmc.combiners import Recenter
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.model.precision import double_precision
from shardmc.pipeline.counts import Nodes
from shardmc.pipeline.fitting import as_front_end
from shardmc.pipeline.grouping import recentered
from shardmc.pipeline.stage import Job
from shardmc.sample import Auto


@pytest.fixture(scope="session")
def log_likelihoods() -> Callable[..., np.ndarray]:
    """The log-likelihoods of groups, in the order of their labels, with every group centred at the parameters."""

    def compute(model: Any, rows: Any, params: dict[str, Any]) -> np.ndarray:
        with double_precision():
            source, bound = as_front_end(model, effects=True).open(as_source(rows), 0)
            blocks: Any = source.split(Partition(1), 0)
            theta = np.asarray(bound.unconstrain(params))
            job = Job(bound, blocks, Local(), 0, Recenter(), Auto())
            blocks = recentered(job, blocks, theta, Nodes.at(job.model, 1, 1))
            _, batch = next(iter(blocks.batches([0], 1)))
            found = np.asarray(jax.jit(bound.log_likelihood)(theta, batch.take(0)[0]))
        ordered = np.empty(len(blocks.layout.order))
        ordered[blocks.layout.order] = found[: len(ordered)]
        return ordered

    return compute
