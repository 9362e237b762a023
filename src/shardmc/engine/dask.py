"""Shards on a Dask cluster: workers read or keep the rows, and only small arrays are sent."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.source import Batch, Blocks, padded
from shardmc.engine.engine import Engine, Program, T, Tree, by_shard
from shardmc.engine.local import default_batch
from shardmc.errors import DataError, ModelError, OptionError, SamplingError
from shardmc.model.precision import Precision
from shardmc.types import Rows

if TYPE_CHECKING:
    from distributed import Client, Future

    from shardmc.engine.worker import SharedCall

_MOST_IN_FLIGHT = 64
_PAUSE = 0.1
_ATTEMPTS = 4
_LARGE = 1 << 16
"""If the arguments that all tasks share are larger (in bytes), they are sent once per worker, not with every task."""


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
    ) -> None:
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise OptionError(f"batch of Dask must be a positive whole number, not {batch!r}.")
        self.client = _connected(client)
        self.batch = batch
        self.resources = dict(resources or {})
        self._found: _Workers | None = None
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
        workers = self._prepared()
        size = self.batch or default_batch(blocks, workers.threads, workers.accelerated)
        rows = self._rows(blocks, size)
        call = _ForTasks(self.client, _shared_call(program, shared))
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
                resources=self.resources or None,
            )

        for group, results in self._finished(submit, rows, _grouped(wanted, size)):
            if isinstance(results, _Failure):
                if on_failure is None or isinstance(results.error, ModelError | DataError | OptionError):
                    raise results.error
                for shard in group:
                    on_failure(shard, str(results.error) or type(results.error).__name__)
                continue
            yield from by_shard(group, results, on_done)

    def _finished(
        self,
        submit: Callable[[Sequence[int]], Future],
        rows: _RowsOfTasks,
        groups: Sequence[Sequence[int]],
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield (group, results) or (group, failure) as tasks end. Tasks of a worker that died are submitted again."""
        from distributed import as_completed

        waiting, pending = deque(groups), dict[Any, Sequence[int]]()
        attempts: dict[int, int] = {}
        most = max(_MOST_IN_FLIGHT, 4 * self._prepared().threads)
        completed = as_completed(loop=self.client.loop, with_results=True, raise_errors=False)
        try:
            while waiting or pending:
                while waiting and len(pending) < most:
                    group = waiting.popleft()
                    future = submit(group)
                    pending[future] = group
                    completed.add(future)
                future, result = next(completed)
                group = pending.pop(future)
                if future.status == "finished":
                    yield group, result
                elif future.status == "error":
                    yield group, _failure(group, result)
                else:  # cancelled, because the rows it needs were lost with a worker
                    attempts[group[0]] = attempts.get(group[0], 0) + 1
                    rows.send_again(group)
                    if attempts[group[0]] < _ATTEMPTS:
                        waiting.appendleft(group)
                        continue
                    yield (
                        group,
                        _Failure(
                            SamplingError(
                                f"{_named(group)} could not be computed: the workers that held their rows were lost "
                                f"{_ATTEMPTS} times."
                            )
                        ),
                    )
        finally:
            self.client.cancel(list(pending))

    def _prepared(self) -> _Workers:
        """The workers that can take tasks, determined once. Waits until there is one."""
        if self._found is None:
            from shardmc.engine.worker import Threads, accelerated

            self.client.register_plugin(Threads())
            while not (workers := self._workers()):
                time.sleep(_PAUSE)
            kinds: Any = self.client.run(accelerated, workers=list(workers), on_error="ignore")
            self._found = _Workers(sum(workers.values()), bool(kinds) and all(kinds.values()))
        return self._found

    def _workers(self) -> dict[str, int]:
        """Addresses and threads of the workers that have the resources."""
        offers: Any = self.client.run_on_scheduler(_offers)
        able = {
            address: threads
            for address, (threads, has) in offers.items()
            if all(has.get(name, 0) >= amount for name, amount in self.resources.items())
        }
        if offers and not able:
            there = sorted(
                {f"{name}={amount:g}" for _, has in offers.values() for name, amount in has.items()}
            )
            raise OptionError(
                f"No worker has the resources {self.resources}; the workers offer {', '.join(there) or 'none'}. "
                'Start workers with, for example, --resources "GPU=1", or leave resources out.'
            )
        return able

    def _rows(self, blocks: Blocks, size: int) -> _RowsOfTasks:
        if blocks.portable:
            return _ReadRows(_ForTasks(self.client, blocks), size)
        _, batch = next(iter(blocks.batches([0], size)))
        if not isinstance(batch, Batch):
            return _RowsOfGroups(blocks, size)
        leaves = jax.tree.leaves((batch.rows, batch.row_weights))
        # Blocks that differ only in what they keep have the same arrays, cut in the same way: their rows are sent once.
        key = (*map(id, leaves), size, blocks.sizes.tobytes())
        if key not in self._sent:
            self._sent[key] = {}
            for leaf in leaves:
                weakref.finalize(leaf, self._sent.pop, key, None)
        kept = None if batch.kept_rows is None else jax.device_get((batch.kept_rows, batch.kept_weights))
        return _SentRows(blocks, size, _ForTasks(self.client, kept), self._sent[key], self._scatter)

    def _scatter(self, rows: Tree) -> Future:
        able = list(self._workers()) if self.resources else None
        attempts = _ATTEMPTS
        while True:
            try:
                # Without a hash: equal rows of two groups are still two parts.
                scattered: Any = self.client.scatter([rows], workers=able, hash=False)
                return scattered[0]
            except OSError:  # sent to a worker that has died, which the scheduler does not know yet
                attempts -= 1
                if not attempts:
                    raise
                time.sleep(_PAUSE)


@dataclass(frozen=True)
class _Workers:
    """What the engine knows about the workers."""

    threads: int
    accelerated: bool
    """Whether all of them compute on an accelerator."""


@dataclass(frozen=True)
class _Failure:
    """Why a group of shards has no results."""

    error: Exception


@final
class _ForTasks:
    """A value for many tasks: part of each task if it is small, otherwise sent to every worker once."""

    def __init__(self, client: Client, value: Any) -> None:
        import cloudpickle

        self._client, self._value = client, value
        self._content = cloudpickle.dumps(value)
        self._future: Future | None = None

    def argument(self) -> Any:
        """The argument of a task that stands for the value."""
        from shardmc.engine.worker import held

        if len(self._content) < _LARGE:
            return self._value
        if self._future is None or self._future.status == "cancelled":
            self._future = self._client.submit(held, self._content, pure=False)
        return self._future


@final
@dataclass(frozen=True)
class _ReadRows:
    """Rows that the workers read themselves."""

    blocks: _ForTasks
    size: int

    def task(self, group: Sequence[int]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from shardmc.engine.worker import run_files

        return run_files, (self.blocks.argument(), list(group), self.size)

    def send_again(self, group: Sequence[int]) -> None:
        """Nothing was sent."""


@final
@dataclass(frozen=True)
class _SentRows:
    """Rows in this process's memory. Those of each group are sent to a worker when they are first needed."""

    blocks: Blocks
    size: int
    kept: _ForTasks
    parts: dict[int, Future]  # by the number of the group
    scatter: Callable[[Tree], Future]

    def task(self, group: Sequence[int]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from shardmc.engine.worker import run_rows

        number = group[0] // self.size
        if number not in self.parts or self.parts[number].status == "cancelled":
            self.parts[number] = self.scatter(self._pack(number))
        _, batch = next(iter(self.blocks.batches(group, self.size)))
        position = padded(group, self.size) - number * self.size
        header = replace(
            batch,
            rows=None,
            row_weights=None,
            kept_rows=None,
            kept_weights=None,
            starts=(position * batch.capacity).astype(np.int32),
        )
        return run_rows, (jax.device_get(header), self.parts[number], self.kept.argument())

    def send_again(self, group: Sequence[int]) -> None:
        """Forget that this group's rows were sent."""
        self.parts.pop(group[0] // self.size, None)

    def _pack(self, number: int) -> tuple[Rows, Tree]:
        """Rows and weights of a group: a slice of `capacity` rows for each shard, and one more row."""
        shards = range(number * self.size, min((number + 1) * self.size, self.blocks.num_shards))
        _, batch = next(iter(self.blocks.batches(shards, self.size)))
        packed = batch.packed()
        return packed.rows, packed.row_weights


@final
@dataclass(frozen=True)
class _RowsOfGroups:
    """Shards of groups. Every task takes its rows along: what is known about the groups differs between calls."""

    blocks: Blocks
    size: int

    def task(self, group: Sequence[int]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from shardmc.engine.worker import run_packed

        _, batch = next(iter(self.blocks.batches(group, self.size)))
        return run_packed, (jax.device_get(batch.packed()),)

    def send_again(self, group: Sequence[int]) -> None:
        """Nothing stays with a worker."""


_RowsOfTasks = _ReadRows | _SentRows | _RowsOfGroups


def _connected(client: Client | str) -> Client:
    try:
        from distributed import Client
    except ImportError as error:
        raise OptionError("Dask is not installed: pip install 'shardmc[dask]'.") from error
    if isinstance(client, str):
        try:
            return Client(client, set_as_default=False)
        except (OSError, ValueError) as error:
            raise OptionError(
                f"No Dask scheduler answers at {client!r}. An address looks like tcp://host:8786."
            ) from error
    if not isinstance(client, Client) or client.asynchronous:
        kind = "an asynchronous Client" if isinstance(client, Client) else type(client).__name__
        raise OptionError(f"Dask takes a distributed.Client or the address of a scheduler, not {kind}.")
    return client


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


def _on_host(leaf: Any) -> Any:
    """A leaf as a NumPy array. Random keys, which NumPy cannot hold, are unchanged."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if is_key else np.asarray(leaf)


def _offers(dask_scheduler: Any = None) -> dict[str, tuple[int, dict[str, float]]]:
    return {w.address: (w.nthreads, dict(w.resources)) for w in dask_scheduler.running}


def _failure(group: Sequence[int], result: Any) -> _Failure:
    """The error of a task. If its workers died too often, the message says so."""
    from distributed import KilledWorker

    _, error, traceback = result
    if isinstance(error, KilledWorker):
        return _Failure(
            SamplingError(
                f"{_named(group)} could not be computed: every worker that tried died, probably because it ran out of "
                "memory. Use more shards, a smaller batch, or workers with more memory."
            )
        )
    return _Failure(error.with_traceback(traceback))


def _named(group: Sequence[int]) -> str:
    return f"Shards {group[0]} to {group[-1]}"
