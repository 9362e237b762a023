"""How the rows of shards get to the workers of a cluster: read there, sent once, or sent with every task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from shardmc.data.batch import Blocks, padded
from shardmc.engine.engine import Tree
from shardmc.types import Rows

if TYPE_CHECKING:
    from distributed import Client, Future

_LARGE = 1 << 16
"""If the arguments that all tasks share are larger (in bytes), they are sent once per worker, not with every task."""


@final
class ForTasks:
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
class ReadRows:
    """Rows that the workers read themselves."""

    blocks: ForTasks
    size: int

    def task(self, group: Sequence[int]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
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

    def task(self, group: Sequence[int]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
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

    def task(self, group: Sequence[int]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from shardmc.engine.worker import run_packed

        _, batch = next(iter(self.blocks.batches(group, self.size)))
        return run_packed, (jax.device_get(batch.packed()),)

    def send_again(self, group: Sequence[int]) -> None:
        """Nothing stays with a worker."""


RowsOfTasks = ReadRows | SentRows | RowsOfGroups
