"""The effects of the groups of a mixed model: their moments given the parameters, for any number of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardmc.posterior.tree import axes


@dataclass(frozen=True)
class GroupMoments:
    """Moments of every group's effects at one point of the parameters, and how their means change with these.

    Given the parameters theta, the effects of group g have mean m_g + S_g (theta - theta_0), and a covariance and a
    skewness that change little over the posterior. So effects need neither the rows nor memory per draw.
    """

    labels: tuple[str, ...] = field(metadata=axes("group"))
    point: np.ndarray = field(metadata=axes("coordinate"))  # theta_0
    mean: np.ndarray = field(metadata=axes("group", "effect"))
    covariance: np.ndarray = field(metadata=axes("group", "effect", "other_effect"))
    third: np.ndarray = field(metadata=axes("group", "effect"))
    """Third central moments."""
    slope: np.ndarray = field(metadata=axes("group", "effect", "coordinate"))
    columns: tuple[str, ...] = field(default=(), metadata=axes("group_column"))
    """The columns whose values name the groups."""
    effects: tuple[str, ...] = field(default=(), metadata=axes("effect"))
    """Names of the effects."""

    @property
    def name(self) -> str:
        """The name of the grouping factor."""
        return ":".join(self.columns)

    @cached_property
    def place(self) -> dict[str, int]:
        """Label -> number of the group."""
        return {label: number for number, label in enumerate(self.labels)}

    def summary(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, sd and skewness (group, effect) of the effects over these draws of the parameters, (draw, dim)."""
        mean = self.mean + self.slope @ (theta.mean(axis=0) - self.point)
        spread = np.atleast_2d(np.cov(theta.T))
        moved = np.einsum("gqi,ij,gqj->gq", self.slope, spread, self.slope, optimize=True)
        sd = np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2) + moved)
        return mean, sd, self.third / sd**3

    def draw(self, theta: np.ndarray, groups: Sequence[int], rng: np.random.Generator) -> np.ndarray:
        """Draws (draw, group, effect) of the effects of some groups, one for each draw of the parameters."""
        chosen = np.asarray(groups, int)
        mean = self.mean[chosen] + np.einsum("gqi,di->dgq", self.slope[chosen], theta - self.point)
        size = self.mean.shape[1]
        z = rng.normal(size=(len(theta), len(chosen), size))
        covariance = self.covariance[chosen].astype(np.float64)
        root = np.linalg.cholesky(covariance + 1e-12 * np.eye(size))
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        correlated = np.einsum("gij,dgj->dgi", root, z) / np.sqrt(variance)
        return mean + skewed(correlated, self.third[chosen] / variance**1.5) * np.sqrt(variance)


def skewed(z: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """Quantiles or draws of a standardised, slightly skewed distribution from those of a normal one.

    The first term of Cornish and Fisher's expansion.
    """
    return z + (z**2 - 1) * np.clip(skewness, -1.0, 1.0) / 6
