"""How many shards: a choice from the size of the data, and a look ahead at whether a given number can work."""

from __future__ import annotations

import math
import warnings

import numpy as np

from shardmc.data import Source
from shardmc.errors import OptionError
from shardmc.types import Finding

_FEW_ROWS = 5
"""A warning is given for fewer rows per shard than this times the number of parameters."""
_FEW_GROUPS = 10
"""And for fewer groups per shard than this."""


def number_of_shards(
    shards: int | str, source: Source, dim: int, draws: int, *, many_effects: bool = False
) -> int:
    """K as given, or chosen so that few rows are kept (K^2 < N / (5 d)) and shards are not too small.

    With many effects in each group, a group tells little about each of their sds. In a small shard an sd may then be
    close to zero, where its logarithm is skewed and proposals are rejected. So there are fewer shards.
    """
    units = source.num_units
    if shards == "auto":
        # A group tells more than a row.
        smallest = 20 * dim if units < source.num_rows else max(1_000, 50 * dim)
        per_parameter = 10 if many_effects else 5
        return max(1, int(min(math.sqrt(units / (per_parameter * dim)), units / smallest, draws / 32)))
    if isinstance(shards, bool) or not isinstance(shards, int | np.integer):
        raise OptionError(f'shards must be a whole number or "auto", not {shards!r}.')
    what = "rows" if units == source.num_rows else "groups"
    if not 1 <= shards <= units:
        raise OptionError(f"shards must lie between 1 and the number of {what}, {units}; {shards} was given.")
    most = _most_shards(source, rows=dim + 1, groups=2)
    if shards > most:
        size = _size(source, int(shards))
        raise OptionError(
            f"shards={shards} leaves {size} to a shard, too few for {_parameters(dim)}. {_advice(source, dim)}"
        )
    return int(shards)


def small_shards(count: int, source: Source, dim: int) -> tuple[Finding, ...]:
    """A warning, given at once and as a finding, if shards are so small that the fit is slow and inaccurate."""
    if count <= _most_shards(source, rows=_FEW_ROWS * dim, groups=_FEW_GROUPS):
        return ()
    message = f"A shard has {_size(source, count)} for {_parameters(dim)}: its posterior is far from that of all rows."
    advice = _advice(source, dim)
    warnings.warn(f"{message} {advice}", UserWarning, stacklevel=3)
    return (Finding("warning", "shards", message, advice, {"shards": count, "rows": source.num_rows}),)


def _most_shards(source: Source, *, rows: int, groups: int) -> int:
    """The largest number of shards with at least so many rows and, if they go to shards together, groups."""
    most = source.num_rows // rows
    if source.num_units < source.num_rows:
        most = min(most, source.num_units // groups)
    return max(1, most)


def _size(source: Source, shards: int) -> str:
    def about(number: int, what: str) -> str:
        each = number // shards
        return f"about {each:,} {what if each > 1 else what[:-1]}"

    rows = about(source.num_rows, "rows")
    return f"{about(source.num_units, 'groups')} ({rows})" if source.num_units < source.num_rows else rows


def _parameters(dim: int) -> str:
    return f"{dim} parameter{'s' if dim > 1 else ''}"


def _advice(source: Source, dim: int) -> str:
    most = _most_shards(source, rows=_FEW_ROWS * dim, groups=_FEW_GROUPS)
    return f'Take {"one shard" if most == 1 else f"at most {most:,} shards"}, or leave the choice to shards="auto".'
