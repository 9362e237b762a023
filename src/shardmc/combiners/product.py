"""Density products of Neiswanger, Wang and Xing: estimate the subposteriors' densities, draw from the product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final, get_args

import numpy as np

from shardmc.combiners.moments import in_varying_directions, precisions, symmetric
from shardmc.errors import OptionError, unknown
from shardmc.types import Combined, Combiner, Located, ShardDraws

Kind = Literal["parametric", "nonparametric", "semiparametric"]

MOST_DRAWS = 10_000
"""The most draws of a product of kernel densities, and the most kernels of a shard. Its cost is kernels times
draws times shards."""


@final
@dataclass(frozen=True)
class Product(Combiner):
    """Draws of the product of estimated subposterior densities.

    There are as many draws as the longest shard has, and at most 10,000 with kernel densities.

    Parameters
    ----------
    kind
        "parametric", normal densities N(m_i, S_i), whose product is N(mu, V) with V = (sum_i S_i^-1)^-1 and
        mu = V sum_i S_i^-1 m_i;
        "nonparametric", kernel densities mean_t N(theta; theta_i^t, h^2 S_i);
        "semiparametric", kernel densities that correct a normal one,
        N(theta; m_i, S_i) mean_t N(theta; theta_i^t, h^2 S_i) / N(theta_i^t; m_i, S_i).
        In more than a few dimensions a product of many kernel densities is too noisy to be useful. The notes say
        how many independent draws its weights are worth.
    bandwidth
        h = bandwidth * T^(-1 / (4 + dim)).
    small_sample
        Whether to undo the bias of inverse covariances that are estimated from T draws (parametric).

    Notes
    -----
    Neiswanger et al. draw from the product of kernel densities by changing one shard's kernel at a time. That
    chain moves by about h / sqrt(K) standard deviations per sweep and does not mix in any reasonable time. Here
    draws of the parametric product (then of a Student t with the moments of the product itself) are weighted
    by the same density and resampled.

    Examples
    --------
    >>> shards = ShardDraws.of(np.random.default_rng(0).normal(size=(4, 10_000, 1)), scaling="fractional")
    >>> round(float(Product()(shards, None, np.random.default_rng(1)).values.std()), 2)
    0.5
    """

    scaling = "fractional"
    pools = False

    kind: Kind = "parametric"
    bandwidth: float = 1.0
    small_sample: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise unknown("kind of Product", self.kind, get_args(Kind))
        if not self.bandwidth > 0:
            raise OptionError(f"bandwidth must be positive; {self.bandwidth} was given.")

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine draws of the fractional subposteriors; modes are not used."""
        draws = replace(draws, scaling="fractional")
        return in_varying_directions(draws, lambda inner: self._product(inner, rng))

    def _product(self, draws: ShardDraws, rng: np.random.Generator) -> Combined:
        precision, notes = precisions(draws, self.small_sample)
        covariance = symmetric(np.linalg.inv(precision.sum(axis=0)))
        mean = covariance @ np.einsum("ijk,ik->j", precision, draws.means)
        longest = max(len(v) for v in draws.values)
        if self.kind == "parametric":
            root = np.linalg.cholesky(covariance)
            return Combined(mean + rng.standard_normal((longest, draws.dim)) @ root.T, notes=notes)
        # Imported here because JAX is slow to import and no other combiner needs it.
        from shardmc.combiners.kernel_product import KernelProduct

        product = KernelProduct.of(draws, self.bandwidth, self.kind == "semiparametric", MOST_DRAWS)
        values, worth = product.sample(mean, covariance, min(longest, MOST_DRAWS), rng)
        if worth < 0.1 * len(values):
            notes = (
                *notes,
                f"The {len(values)} draws of the {self.kind} product are worth about {worth:.0f} "
                f"independent ones: {draws.num_shards} kernel densities in {draws.dim} dimensions overlap "
                f"too little.",
            )
        if longest > MOST_DRAWS:
            notes = (*notes, f"The {self.kind} product makes no more than {MOST_DRAWS} draws.")
        return Combined(values, notes=notes)
