"""Results of shards in the shards' own order, whatever the order in which an engine finishes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_order(results: Iterable[tuple[int, T]], shards: Sequence[int]) -> Iterator[tuple[int, T]]:
    """Yield (shard, result) in the order of `shards`. Results that come too early wait.

    A sum of floating point numbers depends on the order of its terms, and a random walk on the last digit of a
    sum: taken in this order, sums over shards are the same on every engine.

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
