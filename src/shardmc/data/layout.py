"""Where the groups of a table lie: in which shard, and in which stretches of rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardmc.data.assignment import shard_starts

_LONGEST = 64  # rows of a stretch
_JOIN = 0.75
"""Cost of adding up a stretch, in rows: it decides how long stretches are."""


@dataclass(frozen=True)
class Layout:
    """Where the groups of a table lie: in which shard, and in which stretches of it."""

    counts: np.ndarray  # (group,) rows of each group, by its code
    shard: np.ndarray  # (group,)
    length: int  # of a stretch
    num_shards: int

    def __post_init__(self) -> None:
        for name, value in self._derived().items():
            object.__setattr__(self, name, value)

    sizes: np.ndarray = field(init=False)  # (shard,) groups
    starts: np.ndarray = field(init=False)  # (shard,) place of its first group
    stretch_sizes: np.ndarray = field(init=False)  # (shard,) stretches
    stretch_starts: np.ndarray = field(init=False)
    order: np.ndarray = field(init=False)  # (group,) codes by place
    place: np.ndarray = field(init=False)  # (group,) places by code
    first: np.ndarray = field(init=False)  # (group,) by place: its first stretch within its shard
    pieces: np.ndarray = field(init=False)  # (group,) by place: its number of stretches

    def _derived(self) -> dict[str, np.ndarray]:
        pieces = -(-self.counts // self.length)
        sizes = np.bincount(self.shard, minlength=self.num_shards)
        stretch_sizes = np.bincount(self.shard, pieces, minlength=self.num_shards).astype(np.int64)
        starts = shard_starts(sizes)
        order = stable_order(starts[self.shard])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        ordered = pieces[order]
        before = np.cumsum(ordered) - ordered
        shard_of = self.shard[order]
        # The stretches before a group in its shard: those before it in all, less those before its shard.
        return {
            "sizes": sizes,
            "starts": starts,
            "stretch_sizes": stretch_sizes,
            "stretch_starts": shard_starts(stretch_sizes),
            "order": order,
            "place": place,
            "first": before - before[starts][shard_of],
            "pieces": ordered,
        }

    @property
    def joined(self) -> bool:
        """Whether every group is one stretch."""
        return bool((self.pieces == 1).all())

    def stretches_of(self, positions: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For groups (positions within each shard): their stretches, and which of all these groups each belongs to."""
        found, seen = [], 0
        for shard, given in enumerate(positions):
            chosen = np.unique(np.asarray(given, np.int64)) + self.starts[shard]
            counts = self.pieces[chosen]
            number = np.repeat(np.arange(len(chosen)), counts)
            within = np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)
            found.append((self.first[chosen][number] + within, number + seen))
            seen += len(chosen)
        return found

    def places(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For rows of some whole groups, given the codes of these groups: how to arrange them.

        Returns
        -------
        index (stretch, row): the row for every place; weights (stretch, row): 1, or 0 for padding; group (stretch,):
        the place of each stretch's group within its shard. Stretches are in the order of shards and groups.
        """
        rank = self.place[codes]
        by_group = stable_order(rank)
        ranks = rank[by_group]
        begin = np.flatnonzero(np.diff(ranks, prepend=-1))
        present, counts = ranks[begin], np.diff(np.append(begin, len(ranks)))
        pieces = -(-counts // self.length)
        owner = np.repeat(np.arange(len(present)), pieces)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        row = within[:, None] * self.length + np.arange(self.length)
        real = row < counts[owner][:, None]
        index = by_group[begin[owner][:, None] + np.where(real, row, 0)]
        group = present[owner] - self.starts[self.shard[self.order[present[owner]]]]
        return index, real, group.astype(np.int32)


def stable_order(keys: np.ndarray) -> np.ndarray:
    """The places of whole numbers from 0 in ascending order; equal ones keep their order. By counting, not comparing.

    >>> stable_order(np.array([2, 0, 2, 1]))
    array([1, 3, 0, 2])
    """
    places = np.arange(len(keys))
    if len(keys) < 2 or (keys[1:] >= keys[:-1]).all():
        return places
    from scipy import sparse  # imported here because it is slow to import

    shape = int(keys.max()) + 1, len(keys)
    return sparse.csr_matrix((places, (keys, places)), shape=shape).data


def stretch_length(counts: np.ndarray) -> int:
    """The number of rows of a stretch that costs least: long ones need padding, short ones must be added up.

    >>> stretch_length(np.full(1000, 10)), stretch_length(np.array([1, 3, 500, 2000]))
    (10, 25)
    """
    longest = int(counts.max())
    if longest <= _LONGEST and counts.sum() >= 0.7 * longest * len(counts):
        return longest
    sizes, number = np.unique(counts, return_counts=True)

    def cost(length: int) -> float:
        stretches = (number * -(-sizes // length)).sum()
        return float(stretches * (length + (_JOIN if longest > length else 0.0)))

    return min(range(1, _LONGEST + 1), key=cost)
