"""Effects of the groups of a mixed model: a table of all of them, draws of some, and their part in predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from scipy.special import ndtri

from shardmc.data.arrow import SEPARATOR
from shardmc.errors import OptionError, RunError, unknown
from shardmc.formulas.design import design_of
from shardmc.formulas.groups import Factor
from shardmc.formulas.mixed import effect_parameter
from shardmc.names import shown
from shardmc.posterior import Posterior
from shardmc.posterior.prediction import evenly
from shardmc.posterior.records import GroupMoments, skewed
from shardmc.posterior.result import INTERVAL, IntervalKind, check_interval, ends
from shardmc.seeds import Purpose, generator

if TYPE_CHECKING:
    import pandas as pd


def effects(
    posterior: Posterior,
    factor: str | None = None,
    *,
    interval: float = INTERVAL,
    interval_kind: IntervalKind = "eti",
) -> pd.DataFrame:
    """The effects of every group of a grouping factor.

    Parameters
    ----------
    posterior
        What `glm` returned for a formula with group terms, or `fit` for a model with effects of groups, or what
        `shardmc.load` read.
    factor
        The factor, such as "g" or "school:class". It may be left out if there is only one.
    interval, interval_kind
        The interval's probability; "eti" (central) or "hdi" (of highest density).

    Returns
    -------
    pandas.DataFrame
        One row per group and effect, with columns mean, sd, lower and upper. They include the uncertainty of the
        parameters.

    Examples
    --------
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> g = np.repeat(np.arange(100), 20)
    >>> table = {"g": g, "y": rng.normal(size=100)[g] + rng.normal(size=2_000)}
    >>> posterior = glm("y ~ 1 + (1 | g)", table, draws=500, shards=1, check=False)
    >>> effects(posterior, "g").columns.tolist()
    ['mean', 'sd', 'lower', 'upper']
    """
    import pandas as pd

    check_interval(interval, interval_kind)
    chosen = _chosen(posterior, factor)
    labels = chosen.labels
    if isinstance(chosen, GroupMoments):
        mean, sd, skewness = chosen.summary(posterior.theta)
        low, high = _standard_ends(skewness, interval, interval_kind)
        lower, upper = mean + sd * low, mean + sd * high
    else:
        draws = _parameter_draws(posterior, chosen)
        mean, sd = draws.mean(axis=0), draws.std(axis=0, ddof=1)
        lower, upper = ends(draws, interval, interval_kind)
    found = {"mean": mean, "sd": sd, "lower": lower, "upper": upper}
    names = [shown(label.replace(SEPARATOR, ":")) for label in labels]
    index = pd.Index(names, name=chosen.name)
    if len(chosen.effects) > 1:
        index = pd.MultiIndex.from_product([names, chosen.effects], names=[chosen.name, "effect"])
    return pd.DataFrame({name: np.asarray(values).ravel() for name, values in found.items()}, index=index)


def _standard_ends(skewness: np.ndarray, interval: float, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the intervals of standardised, slightly skewed distributions: `skewed` of normal quantiles."""
    outside = 1 - interval
    low, high = (skewed(ndtri(q), skewness) for q in (outside / 2, 1 - outside / 2))
    # The shortest of the intervals that leave out this probability below and the rest above.
    for below in outside * np.linspace(0.02, 0.98, 97) if kind == "hdi" else ():
        left, right = (skewed(ndtri(q), skewness) for q in (below, below + interval))
        shorter = right - left < high - low
        low, high = np.where(shorter, left, low), np.where(shorter, right, high)
    return low, high


def effect_draws(
    posterior: Posterior,
    factor: str | None = None,
    *,
    groups: Sequence[object],
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Draws of the effects of some groups: name of the effect -> (draw, group).

    Parameters
    ----------
    groups
        The groups, as the table names them; a tuple if several columns name a group.
    draws
        How many of the posterior's draws to use, spread evenly over them.
    """
    chosen = _chosen(posterior, factor)
    labels = [_label(group, chosen) for group in groups]
    index = evenly(posterior, draws)
    if isinstance(chosen, GroupMoments):
        places = [_place(label, chosen.place, chosen) for label in labels]
        found = chosen.draw(posterior.theta[index], places, generator(seed, Purpose.EFFECTS))
    else:
        known = {label: number for number, label in enumerate(chosen.labels)}
        places = [_place(label, known, chosen) for label in labels]
        found = _parameter_draws(posterior, chosen)[index][:, places]
    return {name: found[:, :, k] for k, name in enumerate(chosen.effects)}


def _chosen(posterior: Posterior, name: str | None) -> Factor | GroupMoments:
    """A factor whose effects are parameters, or the moments of those that were integrated out."""
    found: dict[str, Factor | GroupMoments] = {}
    if posterior.regression is not None:
        found = {factor.name: factor for factor in design_of(posterior).factors if not factor.integrated}
    if posterior.groups is not None:
        found = {posterior.groups.name: posterior.groups} | found
    if not found:
        raise RunError(
            "This posterior has no effects of groups: its formula has no term such as (1 | g), or its model declares "
            "none with local= and groups=."
        )
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        raise unknown("grouping factor", str(name), found)
    return found[name]


def _moments(posterior: Posterior) -> GroupMoments:
    if posterior.groups is None:
        raise RunError("This posterior was made without the effects of its groups.")
    return posterior.groups


def _parameter_draws(posterior: Posterior, factor: Factor) -> np.ndarray:
    """Draws (draw, level, effect) of effects that are parameters."""
    draws = np.asarray(posterior.draws[effect_parameter(factor)])
    return draws[:, :, None] if factor.only_intercept else draws


def _label(group: object, factor: Factor | GroupMoments) -> str:
    parts = group if isinstance(group, tuple) else (group,)
    if len(parts) != len(factor.columns):
        raise OptionError(
            f"A group of {factor.name!r} is named by {len(factor.columns)} values; {group!r} was given."
        )
    return SEPARATOR.join(map(str, parts))


def _place(label: str, known: Mapping[str, int], factor: Factor | GroupMoments) -> int:
    if label not in known:
        group = label.replace(SEPARATOR, ":")
        raise OptionError(f"{factor.name!r} has no group {group!r} among its {len(known)} groups.")
    return known[label]


@final
@dataclass(frozen=True)
class GroupPart:
    """The part of the linear predictor that the groups of one factor add, for draws of the parameters."""

    factor: Factor
    theta: np.ndarray  # (draw, dim)
    roots: np.ndarray  # (draw, effect, effect) of the covariance of effects
    moments: GroupMoments | None
    """What is known about effects that are integrated out."""
    parameters: np.ndarray | None  # (draw, level, effect)
    seed: int
    all_new: bool = False
    """Whether every group gets an effect drawn from the distribution of effects, as if the fit had not had it."""

    @staticmethod
    def of(
        posterior: Posterior, factor: Factor, index: np.ndarray, seed: int, *, all_new: bool = False
    ) -> GroupPart:
        sds = np.stack([np.asarray(posterior.draws[name])[index] for name in factor.sd_names], axis=1)
        size = len(factor.effects)
        roots = np.broadcast_to(np.eye(size), (len(index), size, size)).copy()
        names = iter(factor.correlation_names)
        for first, number in factor.correlated:
            matrix = np.broadcast_to(np.eye(number), (len(index), number, number)).copy()
            for i in range(number):
                for j in range(i):
                    matrix[:, i, j] = matrix[:, j, i] = np.asarray(posterior.draws[next(names)])[index]
            roots[:, first : first + number, first : first + number] = np.linalg.cholesky(matrix)
        parameters = None if factor.integrated else _parameter_draws(posterior, factor)[index]
        moments = _moments(posterior) if factor.integrated else None
        theta = posterior.theta[index]
        return GroupPart(factor, theta, sds[:, :, None] * roots, moments, parameters, seed, all_new)

    def linear(self, labels: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """(draw, row): the effects of the rows' groups times the rows' columns (row, effect).

        A group that the fit did not have gets an effect drawn from the distribution of effects.
        """
        names, inverse = np.unique(labels.astype(str), return_inverse=True)
        place = self._places()
        numbers = np.array([place.get(name, -1) for name in names])
        new = numbers < 0
        found = np.empty((len(self.theta), len(names), len(self.factor.effects)))
        if (~new).any():
            found[:, ~new] = self._known(numbers[~new])
        for k in np.flatnonzero(new):
            # The same new group has the same effect in every piece of the rows.
            rng = generator(self.seed, Purpose.NEW_EFFECTS, *names[k].encode())
            found[:, k] = np.einsum("dij,dj->di", self.roots, rng.normal(size=self.roots.shape[:2]))
        return np.einsum("drq,rq->dr", found[:, inverse], columns)

    def _places(self) -> Mapping[str, int]:
        if self.all_new:
            return {}
        if self.moments is not None:
            return self.moments.place
        return {label: number for number, label in enumerate(self.factor.labels)}

    def _known(self, numbers: np.ndarray) -> np.ndarray:
        if self.parameters is not None:
            return self.parameters[:, numbers]
        assert self.moments is not None
        parts = []
        for number in numbers:  # a group's draws do not depend on which other rows are predicted
            rng = generator(self.seed, Purpose.EFFECTS, int(number))
            parts.append(self.moments.draw(self.theta, [number], rng))
        return np.concatenate(parts, axis=1)
