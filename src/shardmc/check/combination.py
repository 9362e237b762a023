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
    found, measured = [], []
    for seeker, tester in ((first, second), (second, first)):
        _, vectors = np.linalg.eigh(seeker.covariance_ratio)
        lead = seeker.mean_error / max(float(np.linalg.norm(seeker.mean_error)), 1e-300)
        directions = np.stack([lead, vectors[:, -1], vectors[:, 0]])
        mean = tester.mean_along(directions[:1])
        variance = tester.variance_along(directions[1:])
        found.append(directions)
        measured.append(
            Estimate(
                *(np.concatenate([getattr(mean, k), getattr(variance, k)]) for k in ("value", "se", "df"))
            )
        )
    value = (measured[0].value + measured[1].value) / 2
    se = np.hypot(measured[0].se, measured[1].se) / 2
    df = np.minimum(measured[0].df, measured[1].df)
    p_shift = Estimate(value, se, df).p_value(0.0)[0]
    p_width = Estimate(value, se, df).p_value(1.0)[1:]

    error = sample.mean_error
    square = float(error @ error - np.trace(sample.mean_covariance))
    sizes = np.array([np.sqrt(max(square, 0.0)), *np.sqrt(np.maximum(value[1:], 1e-6))])
    ses = se / np.array([1, 2 * sizes[1], 2 * sizes[2]])
    extremes = np.linalg.eigvalsh(sample.covariance_ratio)[[-1, 0]]
    largest = [np.linalg.norm(error), *np.sqrt(np.maximum(extremes, 0))]
    # The two halves agree on a direction only up to its sign.
    axes = [
        error,
        *(a + b * (1 if a @ b >= 0 else -1) for a, b in zip(found[0][1:], found[1][1:], strict=True)),
    ]
    p_values = [p_shift, *p_width]
    shifted, widest, narrowest = (
        Combination(
            float(sizes[k]),
            float(ses[k]),
            float(p_values[k]),
            float(largest[k]),
            _loadings(axes[k] @ weights, names),
        )
        for k in range(3)
    )
    return shifted, widest, narrowest


def _loadings(weights: np.ndarray, names: Sequence[str], most: int = 3) -> tuple[tuple[str, float], ...]:
    """The heaviest parameters of a combination and their weights, scaled to a unit vector."""
    unit = weights / max(float(np.linalg.norm(weights)), 1e-300)
    return tuple((str(names[k]), float(unit[k])) for k in np.argsort(-np.abs(unit))[:most].tolist())
