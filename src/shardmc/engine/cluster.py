"""A Dask cluster as the engine sees it: which workers take tasks, how long to wait, and how rows reach them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict, final

import jax
import numpy as np

from shardmc.data.batch import Blocks, padded
from shardmc.errors import EngineError, OptionError
from shardmc.types import Rows, Tree

if TYPE_CHECKING:
    from distributed import Client, Future, as_completed


PAUSE = 0.1
_BETWEEN_CHECKS = 1.0
_QUIET = 10.0
"""Seconds of waiting after which a warning says what is missing."""
_CONTINUE = "Finished shards are kept in the run folder, if there is one: repeat the call to continue."
_HAS_SHARDMC = "bool(__import__('importlib.util').util.find_spec('shardmc'))"
"""An expression for the workers: a function of shardmc could not be sent to a worker that lacks it."""

_log = logging.getLogger("shardmc")


@dataclass(frozen=True)
class Workers:
    """What the engine knows about the workers."""

    threads: int
    accelerated: bool
    """Whether all of them compute on an accelerator."""


class _Worker(TypedDict):
    """What the scheduler says about a worker; a part of it."""

    nthreads: int
    resources: dict[str, float]
    status: NotRequired[str]


@final
class Cluster:
    """A client, the resources that tasks need, and how long to wait for workers that have them."""

    def __init__(self, client: Client, resources: Mapping[str, float], worker_timeout: float | None) -> None:
        self.client = client
        self.resources = dict(resources)
        self._timeout = worker_timeout
        self._found: Workers | None = None
        self._checked = 0.0
        self._missing_since: float | None = None
        self._said = False

    @property
    def workers(self) -> Workers:
        """The workers that can take tasks, determined once. Waits until there is one."""
        if self._found is None:
            from shardmc.engine.worker import WorkerThreads, accelerated

            self.wait_for_one()
            addresses = self.able()
            self._require_shardmc(list(addresses))
            self.client.register_plugin(WorkerThreads())
            kinds: Any = self.client.run(accelerated, workers=list(addresses), on_error="ignore")
            self._found = Workers(max(1, sum(addresses.values())), bool(kinds) and all(kinds.values()))
        return self._found

    def able(self) -> dict[str, int]:
        """Addresses and threads of the workers that take tasks and have the resources."""
        running = {a: w for a, w in self._known().items() if w.get("status", "running") == "running"}
        able = {
            address: worker["nthreads"]
            for address, worker in running.items()
            if all(worker["resources"].get(name, 0) >= least for name, least in self.resources.items())
        }
        if running and not able:
            offers = {f"{n}={x:g}" for worker in running.values() for n, x in worker["resources"].items()}
            raise OptionError(
                f"No worker has the resources {self.resources}; the workers offer "
                f"{', '.join(sorted(offers)) or 'none'}. "
                'Start workers with, for example, --resources "GPU=1", or leave resources out.'
            )
        return able

    def next_batch(self, completed: as_completed) -> list[tuple[Future, Tree]]:
        """The next tasks that end, with their results."""
        pause = 0.001
        while not (batch := completed.next_batch(block=False)):
            self.check()
            time.sleep(pause)
            pause = min(2 * pause, PAUSE)
        self._missing_since = None
        return batch

    def check(self) -> None:
        """Call this while waiting: it warns if no worker can take tasks, and fails after the timeout."""
        now = time.monotonic()
        if now < self._checked + _BETWEEN_CHECKS:
            return
        self._checked = now
        missing = self._missing()
        if missing is None:
            self._missing_since = None
            return
        if self._missing_since is None:
            self._missing_since, self._said = now, False
        waited = now - self._missing_since
        if self._timeout is not None and waited >= self._timeout:
            raise EngineError(
                f"shardmc has waited {waited:.0f} s for {missing}. {_CONTINUE} "
                "The option worker_timeout sets how long it waits."
            )
        if waited >= _QUIET and not self._said:
            self._said = True
            limit = "" if self._timeout is None else f" It gives up after {self._timeout:g} s."
            _log.warning("shardmc waits for %s.%s", missing, limit)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Errors inside that come from a lost connection are raised as one sentence."""
        try:
            yield
        except Exception as error:
            if isinstance(error, EngineError) or self.client.status == "running":
                raise
            raise self._lost() from error

    def wait_for_one(self) -> None:
        """Wait until a task can run. An adaptive cluster without workers starts some when there is a task."""
        with self.answering():
            task = self.client.submit(eval, "None", pure=False, resources=self.resources or None)
            while not (task.done() and self.able()):
                self.check()
                time.sleep(PAUSE)

    def _require_shardmc(self, addresses: list[str]) -> None:
        found: Any = self.client.run(eval, _HAS_SHARDMC, workers=addresses, on_error="ignore")
        without = sorted(address for address, has in found.items() if not has)
        if without:
            raise EngineError(
                f"{len(without)} of {len(addresses)} workers cannot import shardmc, such as {without[0]}. "
                "Install it in their environment: pip install 'shardmc[dask]'."
            )

    def _known(self) -> dict[str, _Worker]:
        """What the scheduler says about its workers."""
        try:
            said = self.client.scheduler_info(n_workers=-1)
        except TypeError:  # an older Dask tells about all workers
            said = self.client.scheduler_info()
        return said.get("workers", {})

    def _missing(self) -> str | None:
        """What is missing before tasks can run; None if nothing is."""
        if self.client.status in ("closed", "closing"):
            raise self._lost()
        where = f"the Dask scheduler at {self._address}"
        if self.client.status != "running":
            return f"{where}, which does not answer"
        try:
            known = self._known()
            if self.able():
                return None
        except OSError:
            return f"{where}, which does not answer"
        if known:
            return f"memory: all {len(known)} workers of {where} are paused or stopping"
        return f"a worker: {where} has none"

    @property
    def _address(self) -> str:
        scheduler = self.client.scheduler
        return "an unknown address" if scheduler is None else str(scheduler.address)

    def _lost(self) -> EngineError:
        return EngineError(
            "The Dask client was closed, or lost its scheduler, before all shards were computed. "
            f"{_CONTINUE} Make a new client first."
        )


def connected(client: Client | str) -> Client:
    """A client, given one or the address of its scheduler."""
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


Task: TypeAlias = tuple[Callable[..., Tree], tuple[object, ...]]
"""A function of `engine.worker`, and its arguments after the call."""

_LARGE = 1 << 16
"""If the arguments that all tasks share are larger (in bytes), they are sent once per worker, not with every task."""


@final
class ForTasks:
    """A value for many tasks: part of each task if it is small, otherwise sent to every worker once."""

    def __init__(self, client: Client, value: object) -> None:
        import cloudpickle

        self._client, self._value = client, value
        self._content = cloudpickle.dumps(value)
        self._future: Future | None = None

    def argument(self) -> object:
        """The argument of a task that stands for the value."""
        from shardmc.engine.worker import held

        if len(self._content) < _LARGE:
            return self._value
        if self._future is None or self._future.status == "cancelled":
            self._future = self._client.submit(held, self._content, pure=False)
        return self._future


@final
@dataclass(frozen=True)
class ReadRows:
    """Rows that the workers read themselves."""

    blocks: ForTasks
    size: int

    def task(self, group: Sequence[int]) -> Task:
        from shardmc.engine.worker import run_files

        return run_files, (self.blocks.argument(), list(group), self.size)

    def send_again(self, group: Sequence[int]) -> None:
        """Nothing was sent."""


@final
@dataclass(frozen=True)
class SentRows:
    """Rows in this process's memory. Those of each group are sent to a worker when they are first needed."""

    blocks: Blocks
    size: int
    kept: ForTasks
    parts: dict[int, Future]  # by the number of the group
    scatter: Callable[[Tree], Future]

    def task(self, group: Sequence[int]) -> Task:
        from shardmc.engine.worker import run_rows

        number = group[0] // self.size
        if number not in self.parts or self.parts[number].status == "cancelled":
            self.parts[number] = self.scatter(self._pack(number))
        batch = self.blocks.outline(group, self.size)
        position = padded(group, self.size) - number * self.size
        header = replace(
            batch,
            rows=None,
            row_weights=None,
            kept_rows=None,
            kept_weights=None,
            starts=(position * batch.capacity).astype(np.int32),
            order=None,
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
class RowsOfGroups:
    """Shards of groups. Every task takes its rows along: what is known about the groups differs between calls."""

    blocks: Blocks
    size: int

    def task(self, group: Sequence[int]) -> Task:
        from shardmc.engine.worker import run_packed

        _, batch = next(iter(self.blocks.batches(group, self.size)))
        return run_packed, (jax.device_get(batch.packed()),)

    def send_again(self, group: Sequence[int]) -> None:
        """Nothing stays with a worker."""


RowsOfTasks = ReadRows | SentRows | RowsOfGroups
