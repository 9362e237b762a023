"""The linear combinations of parameters that are worst off, found on one half of the draws and tested on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmc.check.moments import Estimate, SteinSample


@dataclass(frozen=True)
class Combination:
    """A linear combination of parameters, and how wrong the draws are along it."""

    value: float
    """Its error without the bias of having been picked as the worst."""
    se: float
    p_value: float
    largest: float
    """The error with that bias: over all draws, no combination shows a larger one."""
    loadings: tuple[tuple[str, float], ...]
    """The heaviest parameters, and their weights per standard deviation; squares of the weights of all sum to 1."""

    @property
    def words(self) -> str:
        """The parameters it is made of, the heaviest first.

        >>> Combination(0.4, 0.1, 0.001, 0.5, (("a", 0.8), ("b", -0.6))).words
        'a - 0.7 b'
        """
        lead = self.loadings[0][1]
        text = self.loadings[0][0]
        for name, weight in self.loadings[1:]:
            share = round(weight / lead, 1)
            if share:
                text += f" {'+' if share > 0 else '-'} {f'{abs(share):g} ' if abs(share) != 1 else ''}{name}"
        return text

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Combination:
        """The combination that `dataclasses.asdict` wrote."""
        loadings = tuple((str(name), float(weight)) for name, weight in stored["loadings"])
        return Combination(stored["value"], stored["se"], stored["p_value"], stored["largest"], loadings)


def worst_combinations(
    sample: SteinSample, halves: np.ndarray, weights: np.ndarray, names: Sequence[str]
) -> tuple[Combination, Combination, Combination]:
    """The combinations whose mean is most wrong, and whose draws are too wide and too narrow the most.

    The largest of many noisy numbers is too large. So each half of the draws finds a direction v, the other half
    measures m^T v or v^T C v, which is right on average for a v that it did not choose, and the two are averaged.
    The size of the mean's error is |m|^2 - tr cov(m), which is right on average too.

    Parameters
    ----------
    sample
        The draws in whitened coordinates.
    halves
        Which half each draw is in, (draw,) bool.
    weights
        Matrix (dim, dim) that turns a whitened direction v into weights of the parameters: v @ weights.
    names
        One name per parameter.
    """
    first, second = sample.part(halves), sample.part(~halves)
    shifts, widths = _crossed(first, second)
    error = sample.mean_error
    size = np.sqrt(max(float(error @ error - np.trace(sample.mean_covariance)), 0.0))
    shifted = Combination(
        value=size,
        se=float(shifts.se[0]),
        p_value=float(shifts.p_value(0.0)[0]),
        largest=float(np.linalg.norm(error)),
        loadings=_loadings(error @ weights, names),
    )
    ratios, vectors = np.linalg.eigh(sample.covariance_ratio)
    roots, p_values = widths.root(), widths.width_p_value()
    widest, narrowest = (
        Combination(
            value=float(roots.value[k]),
            se=float(roots.se[k]),
            p_value=float(p_values[k]),
            largest=float(np.sqrt(max(ratios[end], 0.0))),
            loadings=_loadings(vectors[:, end] @ weights, names),
        )
        for k, end in ((0, -1), (1, 0))
    )
    return shifted, widest, narrowest


def _crossed(first: SteinSample, second: SteinSample) -> tuple[Estimate, Estimate]:
    """Error of the mean (1,), largest and smallest ratio of variances (2,), sought on one half, tested on the other."""
    shifts, widths = [], []
    for seeker, tester in ((first, second), (second, first)):
        lead = seeker.mean_error / max(float(np.linalg.norm(seeker.mean_error)), 1e-300)
        _, vectors = np.linalg.eigh(seeker.covariance_ratio)
        shifts.append(tester.mean_along(lead[None]))
        widths.append(tester.variance_along(vectors[:, [-1, 0]].T))
    return _average(*shifts), _average(*widths)


def _average(a: Estimate, b: Estimate) -> Estimate:
    """Mean of two independent estimates."""
    gradients = np.hypot(a.of_gradients, b.of_gradients) / 2
    return Estimate((a.value + b.value) / 2, np.hypot(a.se, b.se) / 2, np.minimum(a.df, b.df), gradients)


def _loadings(weights: np.ndarray, names: Sequence[str], most: int = 3) -> tuple[tuple[str, float], ...]:
    """The heaviest parameters of a combination and their weights, scaled to a unit vector."""
    unit = weights / max(float(np.linalg.norm(weights)), 1e-300)
    return tuple((str(names[k]), float(unit[k])) for k in np.argsort(-np.abs(unit))[:most].tolist())
