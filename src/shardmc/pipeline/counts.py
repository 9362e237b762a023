"""Numbers that a run can choose: of shards, and of nodes by which effects of groups are integrated out."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shardmc.data import Source
from shardmc.errors import OptionError, warn
from shardmc.mixed import GroupLikelihood, LinearEffects, LocalEffects
from shardmc.model import Model
from shardmc.types import Finding

_FEW_ROWS = 5
"""A warning is given for fewer rows per shard than this times the number of parameters."""
_FEW_GROUPS = 10
"""A warning is given for fewer groups per shard than this, too."""


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
    warn(f"{message} {advice}")
    return (Finding("warning", "shards", message, advice, {"shards": count, "rows": source.num_rows}),)


def _most_shards(source: Source, *, rows: int, groups: int) -> int:
    """The largest number of shards that have at least this many rows each and, if rows are grouped, groups each."""
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


LADDER = {1: (3, 5, 7, 9, 13, 19, 27, 39), 2: (3, 5, 7, 9, 13, 17), 3: (3, 5, 7, 9)}
"""Nodes in each direction that are tried, by the number of effects of a group."""
MOST = {1: 100, 2: 40, 3: 18}
"""The largest number that may be asked for, by the number of effects of a group."""


class Nodes(NamedTuple):
    """Nodes in each direction; all are 0 if effects are not integrated out by quadrature.

    If `few` is less than `enough`, the rule with `few` nodes is corrected at the mode by the finer one.

    >>> Nodes.given(5), Nodes.given(20)
    (Nodes(few=5, enough=5, finer=7), Nodes(few=20, enough=20, finer=28))
    """

    few: int
    """The nodes of the sampler."""
    enough: int
    """The fewest nodes that are enough without a correction."""
    finer: int
    """The nodes of the certificate."""

    @staticmethod
    def given(number: int) -> Nodes:
        """This number, without a correction. The certificate uses two more, or two fifths more."""
        return Nodes(number, number, max(number + 2, round(1.4 * number)))

    @staticmethod
    def at(model: Model, few: int, enough: int) -> Nodes:
        """The numbers at these places of the ladder."""
        effects = effects_by_quadrature(model)
        if not effects:
            return Nodes(0, 0, 0)
        ladder = LADDER[effects]
        few, enough = (min(place, len(ladder) - 2) for place in (few, enough))
        return Nodes(ladder[few], ladder[enough], ladder[enough + 1])


def effects_by_quadrature(model: Model) -> int:
    """The number of effects of a group, if they are integrated out by quadrature; otherwise 0."""
    local = _effects(model)
    return local.size if isinstance(local, LocalEffects) else 0


def has_many_effects(model: Model) -> bool:
    """Whether a group has too many effects for quadrature."""
    return isinstance(_effects(model), LinearEffects)


def _effects(model: Model) -> LocalEffects | LinearEffects | None:
    likelihood = model.log_likelihood_function
    return likelihood.local if isinstance(likelihood, GroupLikelihood) else None


def asked_nodes(nodes: int | str) -> int | None:
    """The number that was asked for; None for "auto".

    >>> asked_nodes("auto"), asked_nodes(9)
    (None, 9)
    """
    if nodes == "auto":
        return None
    if isinstance(nodes, bool) or not isinstance(nodes, int | np.integer) or nodes < 1:
        raise OptionError(f'nodes must be a positive whole number or "auto", not {nodes!r}.')
    return int(nodes)


def refuse_nodes(nodes: int | None, model: Model) -> None:
    """Refuse a number of nodes that a model has no use for, or that is too large for it."""
    if nodes is None:
        return
    effects = effects_by_quadrature(model)
    if not effects:
        raise OptionError(
            f"nodes={nodes} has no meaning for this model: quadrature is for one to three effects per group and for "
            "responses that are neither Gaussian nor lognormal. Leave nodes out."
        )
    if nodes > MOST[effects]:
        each = f"{effects} effect{'s' if effects > 1 else ''} per group"
        raise OptionError(f"nodes={nodes} is too many: with {each} there may be at most {MOST[effects]}.")
