"""Work of NumPy on long arrays in a few threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_LEAST = 1 << 17
"""Entries from which threads are worth their start."""
_MOST_THREADS = 4


def in_parts(function: Callable[[slice], None], parts: int, entries: int) -> None:
    """Call a function of slices that together are 0, ..., parts - 1, in threads if there are many entries.

    >>> squares = np.empty(5)
    >>> in_parts(lambda part: squares.__setitem__(part, np.arange(5)[part] ** 2), 5, entries=1_000_000)
    >>> squares
    array([ 0.,  1.,  4.,  9., 16.])
    """
    threads = min(_MOST_THREADS, os.cpu_count() or 1, parts)
    if entries < _LEAST or threads < 2:
        function(slice(0, parts))
        return
    edges = np.linspace(0, parts, threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda k: function(slice(edges[k], edges[k + 1])), range(threads)))
