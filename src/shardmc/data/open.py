"""Anything a user may call data becomes a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardmc.data.arrays import ArraySource
from shardmc.data.source import Source


def as_source(data: Any, *, columns: Sequence[str] | None = None) -> Source:
    """The source for arrays, tables or files."""
    if isinstance(data, Source):
        return data if columns is None else data.select(columns)
    return ArraySource(data, columns)
