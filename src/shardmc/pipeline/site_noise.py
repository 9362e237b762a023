"""Noise on what leaves a site, in units of what one row changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import expm, solve_triangular

from shardmc.errors import ModelError
from shardmc.store.site import Site


def with_noise(site: Site, noise: float) -> Site:
    """The site with random changes, `noise` times as large as those that a typical row makes.

    Of a site with n rows, share a and curvature H, a typical row moves the mode by H^-1 / (a n) (as a covariance) and
    changes the curvature by 1 / n of itself. So the mode moves by noise / sqrt(a n) of a posterior standard deviation
    in every direction, and H = L L^T becomes L exp(noise / n S) L^T with S symmetric and standard normal. The draws
    move and stretch with them. The gradient and the curvature at the common point get the same changes, so that nothing
    is gained from having both.

    The random numbers come from the system, not from the seed: whoever knows the seed could subtract them.
    """
    if site.mode is None or site.curvature is None:
        raise ModelError(
            "The site has no mode, so shardmc cannot tell how much one row changes. Use a proper prior, or noise=0."
        )
    rng, dim = np.random.default_rng(), site.dim
    lower = np.linalg.cholesky(site.curvature)
    step = noise / np.sqrt(site.share * site.rows) * rng.normal(size=dim)
    square = rng.normal(size=(dim, dim))
    stretch = noise / site.rows * (square + square.T) / 2
    mode = site.mode + solve_triangular(lower.T, step)
    factor = lower @ expm(stretch / 2)  # factor factor^T is the new curvature
    z = (site.chains.theta - site.mode) @ lower
    reference = site.reference
    if reference is not None:
        change = lower @ (expm(stretch) - np.eye(dim)) @ lower.T
        reference = replace(
            reference, gradient=reference.gradient + lower @ step, curvature=reference.curvature + change
        )
    return replace(
        site,
        chains=replace(site.chains, theta=mode + z @ np.linalg.inv(factor)),
        mode=mode,
        curvature=factor @ factor.T,
        reference=reference,
        noise=noise,
    )
