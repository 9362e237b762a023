"""What an engine is: it runs one program over many shards, wherever their rows are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeAlias, TypeVar

import jax

from shardmc.data.batch import Blocks
from shardmc.model import Density
from shardmc.types import Rows, Tree

T = TypeVar("T")

Program: TypeAlias = Callable[[Rows, jax.Array, Tree, Tree], T]
"""program(rows, weights, own, shared): a pure function of one shard, where `own` is its entry of `per_shard`."""


@dataclass(frozen=True)
class DensityProgram(ABC, Generic[T]):
    """A program with a model. Unless `density_only` is False, it reads only the two log densities of the model.

    Models that differ only in their numbers then share its compiled form.
    """

    model: Density
    runs_a_few_times: ClassVar[bool] = False
    """Whether a fit runs it only a few times. For small shards it is then compiled fast, however long it runs."""
    rows_together: ClassVar[int] = 1 << 22
    """The number of rows, in shards that run in parallel, that keep an accelerator busy. Fewer if it needs much memory
    for a row."""

    @property
    def density_only(self) -> bool:
        """Whether nothing in the program reads more of the model than its log densities."""
        return True

    @abstractmethod
    def __call__(self, rows: Rows, weights: jax.Array, shard: Tree, shared: Tree, /) -> T: ...

    def with_model(self, model: Density) -> DensityProgram[T]:
        return replace(self, model=model)


@dataclass(frozen=True)
class ProgramCall:
    """The arguments of a call of `Engine.map`: which program, over which shards, with what."""

    program: Program[Tree]
    blocks: Blocks
    per_shard: Tree  # arrays (shard, ...)
    shared: Tree


class Engine(ABC):
    """Runs a program over shards and yields (shard, result) as they finish."""

    @abstractmethod
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
        """Yield (shard, program(rows, weights, per_shard[shard], shared)) for the shards named, or all.

        If a shard cannot be computed, `on_failure` is called with the shard and the reason, and the other shards
        continue. Without `on_failure` an error is raised.
        """

    def prepare(self, call: ProgramCall) -> Future[None] | None:
        """Announces a call of `map` with arguments of these shapes, so that an engine can compile the program."""
        return None


def by_shard(
    shards: Sequence[int], stacked: T, on_done: Callable[[int], None] | None
) -> Iterator[tuple[int, T]]:
    """Yield (shard, result) from results stacked along a first axis; `on_done` is called after each."""
    leaves, structure = jax.tree.flatten(stacked)
    for position, shard in enumerate(shards):
        yield shard, jax.tree.unflatten(structure, [leaf[position] for leaf in leaves])
        if on_done is not None:
            on_done(shard)


def in_order(results: Iterable[tuple[int, T]], shards: Sequence[int]) -> Iterator[tuple[int, T]]:
    """Yield (shard, result) in the order of `shards`. Results that come too early wait.

    A sum of floating point numbers depends on the order of its terms, and draws depend on its last digit. In this
    order, sums over shards are the same on every engine.

    Examples
    --------
    >>> list(in_order([(2, "c"), (0, "a"), (1, "b")], [0, 1, 2]))
    [(0, 'a'), (1, 'b'), (2, 'c')]
    """
    early: dict[int, T] = {}
    waiting = iter(shards)
    following = next(waiting, None)
    for shard, result in results:
        early[shard] = result
        while following is not None and following in early:
            yield following, early.pop(following)
            following = next(waiting, None)
