"""What runs inside a Dask worker: the number of its threads, compiled programs, and shards."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import jax
from distributed import Worker, WorkerPlugin

from shardmc.data.batch import Batch, Blocks
from shardmc.engine.engine import Program
from shardmc.engine.local import default_width, is_accelerated, run_batch
from shardmc.model.precision import Precision
from shardmc.types import Rows, Tree


class WorkerThreads(WorkerPlugin):
    """Gives XLA in every worker process as many threads as the worker has, so that workers share the cores.

    Takes effect in processes where JAX has not computed anything yet.
    """

    name = "shardmc-threads"

    def __init__(self) -> None:
        self._driver = os.getpid()

    def setup(self, worker: Worker) -> None:
        # A worker that is a thread of the driver shares its XLA, which keeps its own threads.
        if os.getpid() != self._driver:
            for name in ("NPROC", "PJRT_NPROC"):  # which of the two is read depends on the version of XLA
                os.environ.setdefault(name, str(worker.state.nthreads))


@dataclass(frozen=True)
class SharedCall:
    """The arguments that all tasks of one `map` share."""

    program: bytes  # pickled
    shared: Tree
    precision: Precision

    def run(self, make_batch: Callable[[], Batch], per_shard: Tree, count: int) -> Tree:
        """Results of the first `count` shards of a batch, stacked, in the memory of the host.

        The batch is made here: its arrays, too, have the caller's precision.
        """
        program = unpickled(self.program)
        with self.precision.applied():
            batch = make_batch()
            width = min(default_width(program, batch.capacity), batch.num_shards)
            stacked = jax.device_get(run_batch(program, width, batch, per_shard, self.shared, count))
        return jax.tree.map(lambda a: a[:count], stacked)


def run_rows(
    call: SharedCall,
    header: Batch,
    rows: tuple[Rows, Tree],
    kept: tuple[Rows, Tree] | None,
    per_shard: Tree,
    count: int,
) -> Tree:
    """Run shards whose rows were sent: `header` is their batch without rows."""
    kept_rows, kept_weights = (None, None) if kept is None else kept
    batch = replace(header, rows=rows[0], row_weights=rows[1], kept_rows=kept_rows, kept_weights=kept_weights)
    return call.run(lambda: batch, per_shard, count)


def run_packed(call: SharedCall, batch: Batch, per_shard: Tree, count: int) -> Tree:
    """Run shards whose rows came with the task."""
    return call.run(lambda: batch, per_shard, count)


def run_files(
    call: SharedCall, blocks: Blocks, shards: Sequence[int], size: int, per_shard: Tree, count: int
) -> Tree:
    """Run shards whose rows this worker reads itself."""

    def read() -> Batch:
        ((_, batch),) = blocks.batches(shards, size)
        return batch

    return call.run(read, per_shard, count)


def held(content: bytes) -> object:
    """An object that several tasks need. Dask makes it again if its worker is lost."""
    return pickle.loads(content)


def accelerated() -> bool:
    """Whether this worker computes on an accelerator."""
    return is_accelerated()


@lru_cache(maxsize=64)
def unpickled(content: bytes) -> Program[Tree]:
    """The program with this pickle. It is the same object every time, so that it is compiled only once."""
    return pickle.loads(content)
