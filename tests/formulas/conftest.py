"""Full-data NUTS of NumPyro with a design's own priors: the reference of fitted formulas."""

from __future__ import annotations

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow as pa
import pytest
from numpyro.infer import MCMC, NUTS, init_to_median

_PRIORS = {
    "normal": dist.Normal,
    "student_t": dist.StudentT,
    "exponential": dist.Exponential,
    "gamma": dist.Gamma,
}


def _prior(prior):
    return _PRIORS[prior.name](*prior.arguments)


def _likelihood(family, eta, own):
    """The response's distribution as NumPyro has it, written independently of shardmc's families."""
    if family.name == "gaussian":
        return dist.Normal(eta, own["sigma"])
    if family.name == "poisson":
        return dist.Poisson(jax.numpy.exp(eta))
    if family.name == "negative_binomial":
        return dist.NegativeBinomial2(jax.numpy.exp(eta), own["shape"])
    return dist.Bernoulli(logits=eta)


def _reference(design, data, draws, seed):
    table = pa.Table.from_pandas(data, preserve_index=False)
    chunk = design.chunk(table)
    x = design.encoder.matrix(chunk)
    y = design.roles.response_values(chunk, None)
    offset = design.roles.offset_values(chunk)
    middle, sd = x.mean(axis=0), x.std(axis=0)

    def model(scaled_x, y, offset):
        # Sampled with columns in standard units about their means; reported in their own.
        scaled = [
            numpyro.sample(name, dist.TransformedDistribution(_prior(design.priors[name]), _times(s)))
            for name, s in zip(design.names, sd, strict=True)
        ]
        center = numpyro.sample("center", _prior(design.priors["Intercept"]))
        eta = center + scaled_x @ jax.numpy.stack(scaled)
        own = {name: numpyro.sample(name, _prior(design.priors[name])) for name in design.family.auxiliaries}
        eta = eta if offset is None else eta + offset
        numpyro.sample("y", _likelihood(design.family, eta, own), obs=y)

    @jax.jit  # one program: by itself, MCMC compiles dozens of small ones
    def sampled(*rows):
        # Priors of intercepts lie about the data. From elsewhere the warm-up would take most of the time.
        kernel = NUTS(model, init_strategy=init_to_median())
        mcmc = MCMC(kernel, num_warmup=200, num_samples=draws, progress_bar=False)
        mcmc.run(jax.random.key(seed), *rows)
        return mcmc.get_samples()

    # As arguments: constants of this size would be folded when the sampler is compiled.
    found = {name: np.asarray(v, np.float64) for name, v in sampled((x - middle) / sd, y, offset).items()}
    result = {name: found[name] / s for name, s in zip(design.names, sd, strict=True)}
    result["Intercept"] = found["center"] - sum(
        result[name] * m for name, m in zip(design.names, middle, strict=True)
    )
    return result | {name: found[name] for name in design.family.auxiliaries}


def _times(s):
    return dist.transforms.AffineTransform(0.0, float(s))


@pytest.fixture(scope="session")
def full_data_nuts():
    """(design, data, draws, seed) -> parameter -> draws (draw,)."""
    return _reference
