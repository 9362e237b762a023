"""Group terms with other families: the log-likelihood of groups given their effect, and integrated over it."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from shardmc.data import Partition, as_source
from shardmc.formulas.families import named_family
from shardmc.formulas.linear_model import RowLogLikelihood, model_of
from shardmc.formulas.mixed import GroupLogLikelihood
from shardmc.formulas.preparing import prepare
from shardmc.model.precision import double_precision

NODES = np.linspace(-8, 8, 801)
WEIGHTS = stats.norm.pdf(NODES)
NONE = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    g, x = np.repeat(np.arange(40), 6), rng.normal(size=240)
    eta = 0.3 + 0.4 * x + (0.5 * rng.normal(size=40))[g]
    share = special.expit(eta)
    time = np.exp(eta) * rng.weibull(1.5, 240)
    counts = rng.poisson(np.exp(eta)) * (rng.random(240) < 0.7)
    return pd.DataFrame(
        {
            "g": g,
            "x": x,
            "lognormal": np.exp(eta + 0.5 * rng.normal(size=240)),
            "beta": rng.beta(6 * share, 6 * (1 - share)),
            "weibull": np.minimum(time, 1.5),
            "lost": time > 1.5,
            "zero_inflated_poisson": counts,
        }
    )


def weibull(y, lost, eta, shape):
    found = stats.weibull_min(shape, scale=np.exp(eta) / special.gamma(1 + 1 / shape))
    return np.where(lost, found.logsf(y), found.logpdf(y))


def zero_inflated(y, eta, zi):
    return np.log(zi * (y == 0) + (1 - zi) * stats.poisson.pmf(y, np.exp(eta)))


# Family -> parameters, others, and the log density of a response given eta.
CASES = {
    "lognormal": (
        {"sigma": 0.6},
        {"sigma": 0.4},
        lambda p, e, a: stats.lognorm.logpdf(p["lognormal"], a["sigma"], scale=np.exp(e)),
    ),
    "beta": (
        {"kappa": 5.0},
        {"kappa": 8.0},
        lambda p, e, a: stats.beta.logpdf(p["beta"], a["kappa"] * special.expit(e), a["kappa"] * special.expit(-e)),
    ),
    "weibull": (
        {"shape": 1.2},
        {"shape": 1.6},
        lambda p, e, a: weibull(p["weibull"].to_numpy(), p["lost"].to_numpy(), e, a["shape"]),
    ),
    "zero_inflated_poisson": (
        {"zi": 0.2},
        {"zi": 0.4},
        lambda p, e, a: zero_inflated(p["zero_inflated_poisson"].to_numpy(), e, a["zi"]),
    ),
}  # fmt: skip


def prepared_groups(name):
    """The rows, a family's model and its likelihood of groups, and the rows group by group with the groups' codes."""
    rows = table()
    options = NONE | ({"censored": "lost"} if name == "weibull" else {})
    prepared = prepare(f"{name} ~ x + (1 | g)", as_source(rows), named_family(name), None, **options)
    blocks = prepared.source.split(Partition(1), seed=0)
    _, batch = next(iter(blocks.batches([0], 1)))
    return rows, prepared.design, model_of(prepared), batch.take(0)[0], blocks.layout.order


def points(name):
    first, second, _ = CASES[name]
    return [
        {"Intercept": 0.2, "coefficients": [0.3], "sd_g": [0.4], **first},
        {"Intercept": 0.4, "coefficients": [0.5], "sd_g": [0.7], **second},
    ]


def eta_of(part, point):
    return point["Intercept"] + point["coefficients"][0] * part["x"].to_numpy()


@pytest.mark.parametrize("name", [name for name in CASES if name != "lognormal"])
def test_rows_of_a_group_have_the_likelihood_of_their_effect(name):
    """Compared is its change between two points: constants of a response are left out."""
    effect, log_density = 0.7, CASES[name][2]
    with double_precision():
        rows, design, _, grouped, order = prepared_groups(name)
        of_groups = GroupLogLikelihood(design, RowLogLikelihood(design))
        effects = np.full((len(grouped.weights), 1), effect)
        found = []
        for point in points(name):
            params = {key: jnp.asarray(value) for key, value in point.items()}
            columns, weights = jax.tree.map(
                lambda a: jnp.moveaxis(a, (0, 1), (-1, -2)), (grouped.rows, grouped.weights)
            )
            of_stretches = of_groups.of_stretches(params, columns, effects, weights, counted=True)
            found.append(np.asarray(of_stretches))
    for place, code in enumerate(order[:6]):
        part = rows[rows["g"] == code]
        start, end = (log_density(part, eta_of(part, point) + effect, point).sum() for point in points(name))
        assert found[1][place] - found[0][place] == pytest.approx(end - start, abs=1e-5)
        assert abs(end - start) > 0.01  # what is compared is not a constant


@pytest.mark.slow
def test_effects_of_a_lognormal_response_are_integrated_out_exactly():
    with double_precision():
        rows, _, model, grouped, order = prepared_groups("lognormal")
        likelihood = jax.jit(lambda v, r: model.log_likelihood(model.unconstrain(v), r))
        found = [np.asarray(likelihood(point, grouped)) for point in points("lognormal")]

    def integrated(part, point):
        eta, sd = eta_of(part, point), point["sd_g"][0]
        given = [CASES["lognormal"][2](part, eta + sd * node, point).sum() for node in NODES]
        return special.logsumexp(given, b=WEIGHTS)

    for place, code in enumerate(order[:6]):
        part = rows[rows["g"] == code]
        start, end = (integrated(part, point) for point in points("lognormal"))
        assert found[1][place] - found[0][place] == pytest.approx(end - start, abs=1e-5)
