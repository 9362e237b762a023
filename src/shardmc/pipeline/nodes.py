"""The number of nodes by which effects of groups are integrated out: as asked for, or on a ladder of rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardmc.errors import OptionError
from shardmc.mixed import GroupLikelihood, LinearEffects, LocalEffects
from shardmc.model import Model

LADDER = {1: (3, 5, 7, 9, 13, 19, 27, 39), 2: (3, 5, 7, 9, 13, 17), 3: (3, 5, 7, 9)}
"""Nodes in each direction that are tried, by the number of effects of a group."""
MOST = {1: 100, 2: 40, 3: 18}
"""The largest number that may be asked for, by the number of effects of a group."""


class Nodes(NamedTuple):
    """Nodes in each direction; all are 0 if effects are not integrated out by quadrature.

    If `few` are fewer than `enough`, that rule is corrected at the mode by the finer one.

    >>> Nodes.given(5), Nodes.given(20)
    (Nodes(few=5, enough=5, finer=7), Nodes(few=20, enough=20, finer=28))
    """

    few: int
    """Those of the sampler."""
    enough: int
    """The fewest that are enough without a correction."""
    finer: int
    """Those of the certificate."""

    @staticmethod
    def given(number: int) -> Nodes:
        """So many, without a correction. The certificate uses two more, or two fifths more."""
        return Nodes(number, number, max(number + 2, round(1.4 * number)))

    @staticmethod
    def at(model: Model, few: int, enough: int) -> Nodes:
        """Those at these places of the ladder."""
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
