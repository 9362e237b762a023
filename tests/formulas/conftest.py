"""The posterior of all rows with a design's own priors, by SciPy's densities: the reference of fitted formulas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from scipy import special, stats

_PRIORS = {
    "normal": stats.norm,
    "student_t": stats.t,
    "exponential": lambda rate: stats.expon(scale=1 / rate),
    "gamma": lambda shape, rate: stats.gamma(shape, scale=1 / rate),
}


def _prior(prior):
    return _PRIORS[prior.name](*prior.arguments)


def _log_likelihood(family, y, eta, own):
    """The log densities of all rows, summed, (point,); written independently of shardmc's families."""
    if family.name == "gaussian":
        return np.sum(-0.5 * ((y - eta) / own["sigma"]) ** 2 - np.log(own["sigma"]), axis=1)
    if family.name == "poisson":
        return eta @ y - np.exp(eta).sum(axis=1)
    assert family.name == "negative_binomial"
    shape, (counts, times) = own["shape"], np.unique(y, return_counts=True)
    chosen = (special.gammaln(counts + shape) - special.gammaln(shape)) @ times
    return chosen + eta @ y - ((y + shape) * np.log(shape + np.exp(eta)) - shape * np.log(shape)).sum(axis=1)


@pytest.fixture(scope="session")
def posterior_of_all_rows(exact_draws):
    """(design, data, draws, seed) -> parameter -> draws (draw,)."""

    def reference(design, data, draws, seed):
        chunk = design.chunk(pa.Table.from_pandas(data, preserve_index=False))
        x = design.encoder.matrix(chunk)
        y = np.asarray(design.roles.response_values(chunk, None), float)
        offset = design.roles.offset_values(chunk)
        middle, sd = x.mean(axis=0), x.std(axis=0)
        # The points have columns in standard units about their means, and the logarithms of other parameters.
        scaled, start = (x - middle) / sd, np.zeros(1 + x.shape[1] + len(design.family.auxiliaries))
        start[0] = _prior(design.priors["Intercept"]).mean()
        start[1 + x.shape[1] :] = [
            np.log(_prior(design.priors[name]).mean()) for name in design.family.auxiliaries
        ]

        def parameters(points):
            own = np.exp(points[:, 1 + x.shape[1] :])
            return (
                points[:, 0],
                points[:, 1 : 1 + x.shape[1]],
                dict(zip(design.family.auxiliaries, own.T, strict=True)),
            )

        def log_density(points):
            center, slopes, own = parameters(points)
            eta = center[:, None] + slopes @ scaled.T + (0.0 if offset is None else offset)
            total = _log_likelihood(design.family, y, eta, {name: v[:, None] for name, v in own.items()})
            total += _prior(design.priors["Intercept"]).logpdf(center)
            for name, slope in zip(design.names, (slopes / sd).T, strict=True):
                total += _prior(design.priors[name]).logpdf(slope)
            for name, values in own.items():
                total += _prior(design.priors[name]).logpdf(values) + np.log(values)
            return total

        center, slopes, own = parameters(exact_draws(log_density, start, draws, seed))
        found = dict(zip(design.names, (slopes / sd).T, strict=True))
        return found | {"Intercept": center - (slopes / sd) @ middle} | own

    return reference
