"""Pool draws of several shards in proportion to weights, each shard's draws taken evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardmc.combiners.moments import listed


def apportion(weights: np.ndarray, total: int, order: Sequence[np.ndarray] = ()) -> np.ndarray:
    """Whole numbers in proportion to weights that sum to a total, by largest remainder.

    Parameters
    ----------
    weights
        (shard,) non-negative numbers that sum to 1.
    total
        The sum to reach.
    order
        Keys that decide between equal remainders: the first key is the most important, the largest value wins.

    Examples
    --------
    >>> apportion(np.array([0.5, 0.3, 0.2]), 7)
    array([4, 2, 1])
    """
    quota = weights * total
    counts = np.floor(quota + 1e-9).astype(np.int64)
    remainder = np.round(quota - counts, 9)
    ranking = np.lexsort((*reversed(order), remainder))[::-1]
    counts[ranking[: total - counts.sum()]] += 1
    return counts


def pool(values: Sequence[np.ndarray], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Pool shards' draws in proportion to weights.

    Shard i contributes about w_i S draws: its own draws, thinned evenly if it has more, repeated evenly if it has
    fewer. S is the largest number for which no draw is repeated, unless that would lose more than half of all draws;
    then S is their number. With equal weights and equal numbers of draws, every draw appears once.

    Parameters
    ----------
    values
        One (draw, dim) array per shard.
    weights
        (shard,) non-negative numbers that sum to 1.

    Returns
    -------
    pooled : (draw, dim)
    shard : (draw,)
        The shard each draw came from.
    notes
        A sentence if draws had to be repeated.
    """
    lengths = np.array([len(v) for v in values])
    # Ties are broken by the number of draws and then by the draws, so that the order of the shards does not matter.
    means = np.array([v[:, 0].mean() for v in values])
    counts = apportion(weights, _size(lengths, weights), (lengths, means))
    pooled = np.concatenate(
        [
            v if n == len(v) else v[np.arange(n) * len(v) // max(n, 1)]
            for v, n in zip(values, counts, strict=True)
        ]
    )
    shard = np.repeat(np.arange(len(values)), counts)
    return pooled, shard, _repeat_notes(counts, lengths)


def pooled_count(per_shard: int, weights: np.ndarray) -> int:
    """How many draws `pool` makes of equally many draws of every shard.

    >>> pooled_count(17, np.full(3, 1 / 3))
    51
    """
    return _size(np.full(len(weights), per_shard), weights)


def _size(lengths: np.ndarray, weights: np.ndarray) -> int:
    """Number of pooled draws."""
    total = int(lengths.sum())
    # Half a draw of tolerance, so that shards that differ by a row do not cost a draw.
    given = weights > 0
    without_repeats = min(total, int(np.min((lengths[given] + 0.5) / weights[given])))
    return without_repeats if 2 * without_repeats >= total else total


def _repeat_notes(counts: np.ndarray, lengths: np.ndarray) -> tuple[str, ...]:
    repeated = np.flatnonzero(counts > lengths)
    if len(repeated) == 0:
        return ()
    most = np.max(counts[repeated] / lengths[repeated])
    return (
        f"Draws of {listed(repeated)} were repeated (up to {most:.3g} times on average) to give those "
        f"shards their share of the pooled draws.",
    )
