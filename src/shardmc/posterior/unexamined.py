"""What a run did not examine: the certificate is about the draws, not about the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardmc.posterior.posterior import Posterior

_FIXED_VARIANCE = ("poisson", "binomial")
"""Families whose mean fixes the variance, so that responses can vary more than the family allows."""


def not_examined(posterior: Posterior) -> str:
    """One sentence on what the certificate says nothing about, and the options that cover some of it.

    Examples
    --------
    >>> import numpy as np
    >>> import shardmc
    >>> x = np.random.default_rng(0).normal(size=500)
    >>> table = {"x": x, "y": np.arange(500) % 3}
    >>> posterior = shardmc.glm("y ~ x", table, "poisson", shards=1, draws=100, check=False)
    >>> print(not_examined(posterior))
    Not examined: fit of the model, dependence of rows, overdispersion (robust= allows for the last two).
    """
    regression, adjusted = posterior.regression, posterior.adjusted
    missing = ["fit of the model"]
    if adjusted is None or adjusted.clusters is None:
        missing.append("dependence of rows")
    fixed = regression is not None and regression.design["family"]["name"] in _FIXED_VARIANCE
    if fixed and adjusted is None:
        missing.append("overdispersion")
    option = ""
    if regression is not None and adjusted is None and posterior.groups is None:
        option = f" (robust= allows for the last{' two' if fixed else ''})"
    return f"Not examined: {', '.join(missing)}{option}."
