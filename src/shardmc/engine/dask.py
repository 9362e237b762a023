"""Shards on a Dask cluster: workers read or keep the rows, and only small arrays are sent."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from shardmc.data.batch import Batch, Blocks, padded
from shardmc.engine.cluster import Cluster, ForTasks, ReadRows, RowsOfGroups, RowsOfTasks, SentRows, connected
from shardmc.engine.engine import Engine, Program, T, by_shard
from shardmc.engine.local import default_batch
from shardmc.errors import OptionError, SamplingError
from shardmc.model.precision import Precision
from shardmc.types import Tree

if TYPE_CHECKING:
    from distributed import Client, Future

    from shardmc.engine.worker import SharedCall

_MOST_IN_FLIGHT = 64
_ATTEMPTS = 4


@final
class Dask(Engine):
    """Runs shards on the workers of a Dask cluster, `batch` shards per task.

    Workers read the rows of files themselves. Rows in this process's memory are sent to the workers once and stay
    there. Every worker process compiles a program once. If a worker dies, its unfinished tasks run again elsewhere.

    Parameters
    ----------
    client
        A `distributed.Client`, or the address of a scheduler.
    batch
        Shards per task. By default chosen from the number of shards and of the workers' threads.
    worker_timeout
        Seconds to wait for a scheduler that does not answer, or for a first worker that can take tasks, before the run
        fails. After 10 s a warning says what is waited for. None waits for ever, for example in a queue of jobs.
    resources
        The Dask resources that a task needs. With `{"GPU": 1}`, every worker that was started with
        `--resources "GPU=1"` runs one task at a time, and other workers run none.

    Examples
    --------
    >>> from distributed import Client  # doctest: +SKIP
    >>> engine = Dask(Client("tcp://scheduler:8786"))  # doctest: +SKIP
    >>> posterior = shardmc.fit(model, "rows.parquet", engine=engine)  # doctest: +SKIP
    """

    def __init__(
        self,
        client: Client | str,
        *,
        batch: int | None = None,
        resources: Mapping[str, float] | None = None,
        worker_timeout: float | None = 300.0,
    ) -> None:
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise OptionError(f"batch of Dask must be a positive whole number, not {batch!r}.")
        if worker_timeout is not None and not worker_timeout > 0:
            raise OptionError(
                f"worker_timeout of Dask must be a positive number, or None, not {worker_timeout!r}."
            )
        self.client = connected(client)
        self.cluster = Cluster(self.client, resources or {}, worker_timeout)
        self.batch = batch
        self._sent: dict[tuple[int | bytes, ...], dict[int, Future]] = {}

    def map(
        self,
        program: Program[T],
        blocks: Blocks,
        per_shard: Tree,
        shared: Tree,
        shards: Sequence[int] | None = None,
        on_done: Callable[[int], None] | None = None,
        on_failure: Callable[[int, str], None] | None = None,
    ) -> Iterator[tuple[int, T]]:
        wanted = range(blocks.num_shards) if shards is None else shards
        if not len(wanted):
            return
        workers = self.cluster.workers
        size = self.batch or default_batch(blocks, workers.threads, workers.accelerated)
        rows = self._rows(blocks, size)
        call = ForTasks(self.client, _shared_call(program, shared))
        local = jax.tree.map(np.asarray, per_shard)

        def submit(group: Sequence[int]) -> Future:
            index = padded(group, size)
            mine = jax.tree.map(lambda a: a[index], local)
            function, arguments = rows.task(group)
            # pure=False: Dask would hash the arguments otherwise, and equal calls do not occur.
            return self.client.submit(
                function,
                call.argument(),
                *arguments,
                mine,
                len(group),
                pure=False,
                resources=self.cluster.resources or None,
            )

        for group, results in self._finished(submit, rows, _grouped(wanted, size)):
            if isinstance(results, _Failure):
                if on_failure is None:
                    raise results.error
                for shard in group:
                    on_failure(shard, str(results.error) or type(results.error).__name__)
                continue
            yield from by_shard(group, results, on_done)

    def _finished(
        self,
        submit: Callable[[Sequence[int]], Future],
        rows: RowsOfTasks,
        groups: Sequence[Sequence[int]],
    ) -> Iterator[tuple[Sequence[int], Tree | _Failure]]:
        """Yield (group, results) or (group, failure) as tasks end. Tasks of a worker that died are submitted again.

        If a group of several shards fails, its shards are computed one by one, so that only those fail that must.
        """
        from distributed import as_completed

        waiting = deque(groups)
        pending: dict[Future, Sequence[int]] = {}
        attempts: dict[int, int] = {}
        most = max(_MOST_IN_FLIGHT, 4 * self.cluster.workers.threads)
        completed = as_completed(loop=self.client.loop, with_results=True, raise_errors=False)
        try:
            with self.cluster.answering():
                while waiting or pending:
                    while waiting and len(pending) < most:
                        group = waiting.popleft()
                        future = submit(group)
                        pending[future] = group
                        completed.add(future)
                    for future, result in self.cluster.next_batch(completed):
                        group = pending.pop(future)
                        if future.status == "finished":
                            yield group, result
                        elif future.status == "error" and len(group) > 1:
                            waiting.extend([shard] for shard in group)
                        elif future.status == "error":
                            yield group, _failure(group, result)
                        elif self._again(group, attempts, rows):
                            waiting.appendleft(group)
                        else:
                            yield group, _Failure(_lost_too_often(group))
        finally:
            if self.client.status == "running":
                self.client.cancel(list(pending))

    def _again(self, group: Sequence[int], attempts: dict[int, int], rows: RowsOfTasks) -> bool:
        """Whether to submit a task again that was cancelled, because the rows it needs were lost with a worker."""
        attempts[group[0]] = attempts.get(group[0], 0) + 1
        rows.send_again(group)
        return attempts[group[0]] < _ATTEMPTS

    def _rows(self, blocks: Blocks, size: int) -> RowsOfTasks:
        if blocks.portable:
            return ReadRows(ForTasks(self.client, blocks), size)
        batch = blocks.outline([0], size)
        if not isinstance(batch, Batch):
            return RowsOfGroups(blocks, size)
        # Blocks that differ only in what they keep hold the same rows, cut in the same way: these are sent once.
        held = blocks.held
        assert held, "rows of this process are in some object"
        key = (*map(id, held), size, blocks.sizes.tobytes())
        if key not in self._sent:
            self._sent[key] = {}
            for holder in held:
                weakref.finalize(holder, self._sent.pop, key, None)
        kept = None if batch.kept_rows is None else jax.device_get((batch.kept_rows, batch.kept_weights))
        return SentRows(blocks, size, ForTasks(self.client, kept), self._sent[key], self._scatter)

    def _scatter(self, rows: Tree) -> Future:
        able = list(self.cluster.able()) if self.cluster.resources else None
        attempts = _ATTEMPTS
        while True:
            try:
                # Without a hash: equal rows of two groups are still two parts.
                scattered: Any = self.client.scatter([rows], workers=able, hash=False)
                return scattered[0]
            except (
                OSError,
                TimeoutError,
            ):  # the worker has just died, or an adaptive cluster has none any more
                attempts -= 1
                if not attempts:
                    raise
                self.cluster.wait_for_one()


@dataclass(frozen=True)
class _Failure:
    """Why a group of shards has no results."""

    error: Exception


def _grouped(shards: Sequence[int], size: int) -> list[list[int]]:
    """Cut shards into groups at multiples of `size`, so that a shard is always in the same group.

    >>> _grouped([0, 1, 5, 6, 7], 4)
    [[0, 1], [5, 6, 7]]
    """
    return [list(group) for _, group in groupby(sorted(map(int, shards)), lambda shard: shard // size)]


def _shared_call(program: Program[Tree], shared: Tree) -> SharedCall:
    from shardmc.engine.worker import SharedCall

    return SharedCall(_pickled(program), jax.tree.map(_on_host, shared), Precision.here())


@lru_cache(maxsize=64)
def _pickled(program: Program[Tree]) -> bytes:
    """The same bytes for equal programs, so that a worker finds the program that it has already compiled."""
    import cloudpickle

    return cloudpickle.dumps(program)


def _on_host(leaf: ArrayLike) -> ArrayLike:
    """A leaf as a NumPy array. Random keys, which NumPy cannot hold, are unchanged."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if is_key else np.asarray(leaf)


def _failure(group: Sequence[int], result: tuple[type[Exception], Exception, TracebackType]) -> _Failure:
    """The error of a task. If its workers died too often, the message says so."""
    from distributed import KilledWorker

    _, error, traceback = result
    if isinstance(error, KilledWorker):
        sentence = (
            f"{_named(group)} could not be computed: every worker that tried died, probably because it ran out of "
            "memory. Other shards are kept in the run folder, if there is one. Repeat the call with more shards, a "
            "smaller batch, or workers with more memory."
        )
        return _Failure(SamplingError(sentence))
    return _Failure(error.with_traceback(traceback))


def _lost_too_often(group: Sequence[int]) -> SamplingError:
    return SamplingError(
        f"{_named(group)} could not be computed: the workers that held their rows were lost {_ATTEMPTS} times. "
        "Other shards are kept in the run folder, if there is one: repeat the call to try again."
    )


def _named(group: Sequence[int]) -> str:
    return f"Shard {group[0]}" if len(group) == 1 else f"Shards {group[0]} to {group[-1]}"
