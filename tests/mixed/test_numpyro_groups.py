"""NumPyro models whose plate of groups is integrated out: the same as written by hand, or refused with a sentence."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam
from scipy.stats import norm

import shardmc
from shardmc.errors import DataError, ModelError

MEASURES_PRECISION = False

GROUPS = 120
RNG = np.random.default_rng(0)
G = RNG.permutation(np.repeat(np.arange(GROUPS), 1 + np.arange(GROUPS) % 5))
X = RNG.normal(size=len(G))
Z = RNG.normal(size=GROUPS)
"""A covariate of the groups."""
ROWS = {"g": G, "x": X, "y": (RNG.random(len(G)) < 0.6).astype(int), "h": G // 2, "k": G + 1}
POINT = {"mu": 0.3, "tau": 0.8}


def population() -> tuple[Any, Any]:
    return numpyro.sample("mu", dist.Normal(0, 1)), numpyro.sample("tau", dist.Exponential(1))


def observe(eta: Any, y: Any) -> None:
    numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)


def centred(g, y):
    mu, tau = population()
    with numpyro.plate("groups", GROUPS):
        b = numpyro.sample("b", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y)):
        observe(b[g], y)


def not_centred(g, y):
    mu, tau = population()
    with numpyro.plate("groups", GROUPS):
        z = numpyro.sample("z", dist.Normal(0, 1))
    b = numpyro.deterministic("b", mu + tau * z)
    numpyro.deterministic("log_tau", jnp.log(tau))
    observe(jnp.take(b, g), y)


def counted_from_one(k, y):
    mu, tau = population()
    with numpyro.plate("groups", GROUPS):
        b = numpyro.sample("b", dist.Normal(jnp.zeros(GROUPS), tau))
    observe(jax.vmap(lambda j: mu + b[j - 1])(k), y)


reparametrised = handlers.reparam(centred, config={"b": LocScaleReparam(0)})


def by_hand(params: Any, rows: Any, effects: Any) -> jax.Array:
    eta = params["mu"] + effects["b"]
    return rows["y"] * eta - jnp.logaddexp(0.0, eta)


MODEL = shardmc.Model(
    by_hand,
    lambda p: -0.5 * p["mu"] ** 2 - p["tau"],
    {"mu": (), "tau": "positive"},
    local={"b": "tau"},
    groups="g",
)


def bound(function: Any, **options: Any) -> shardmc.Model:
    return shardmc.from_numpyro(function, **options).bind(ROWS)


@pytest.mark.parametrize(
    ("function", "scale", "mean"),
    [(centred, 1.0, 1.0), (not_centred, 0.8, 0.0), (counted_from_one, 1.0, 0.0), (reparametrised, 0.8, 0.0)],
)
def test_the_model_is_the_one_by_hand(function: Any, scale: float, mean: float) -> None:
    """Rows given their effects, the distribution of the effects, and the prior. b is `scale` times the site."""
    found = bound(function)
    assert found.names == MODEL.names
    assert found.effects is not None
    assert found.effects.column in ("g", "k")
    params: Any = {name: jnp.asarray(value) for name, value in POINT.items()}
    b = np.random.default_rng(1).normal(size=len(G))
    site = (b + mean * POINT["mu"]) / scale
    given = jax.jit(found.log_likelihood_function)(params, ROWS, {found.effects.names[0]: site})
    np.testing.assert_allclose(given, by_hand(params, ROWS, {"b": b}), atol=1e-5)
    assert float(found.effects.root(params)[0, 0]) * scale == pytest.approx(POINT["tau"])
    assert float(found.effects.means(params)[0]) == pytest.approx(mean * POINT["mu"])
    theta = MODEL.unconstrain(POINT)
    gap = jax.jit(lambda theta: found.log_prior(theta) - MODEL.log_prior(theta))
    gaps = [float(gap(t)) for t in (theta, theta + 0.5)]
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-5)
    # Negative control: other effects.
    assert np.abs(given - by_hand(params, ROWS, {"b": -b})).max() > 0.1


def slopes(g, x, y):
    """Intercepts and slopes, with a covariate of the groups."""
    sds = numpyro.sample("sds", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    cor = jnp.array([[1.0, 0.0], [0.5, jnp.sqrt(0.75)]])
    with numpyro.plate("groups", GROUPS):
        b = numpyro.sample("b", dist.MultivariateNormal(0, scale_tril=sds[:, None] * cor))
    eta = b[g, 0] + b[g, -1] * x + jnp.asarray(Z)[g]
    numpyro.sample("y", dist.Normal(eta, sigma), obs=y)


@pytest.mark.slow
def test_several_effects_and_a_covariate_of_the_groups() -> None:
    found = bound(slopes)
    assert found.effects is not None
    assert found.effects.names == ("b[0]", "b[1]")
    params: Any = {"sds": jnp.array([0.7, 1.2]), "sigma": jnp.array(0.6)}
    first, second = np.random.default_rng(1).normal(size=(2, len(G)))
    given = jax.jit(found.log_likelihood_function)(params, ROWS, {"b[0]": first, "b[1]": second})
    np.testing.assert_allclose(given, norm.logpdf(ROWS["y"], first + second * X + Z[G], 0.6), atol=1e-5)
    wanted = np.array([[0.7, 0.0], [0.6, 1.2 * np.sqrt(0.75)]])
    np.testing.assert_allclose(found.effects.root(params), wanted, atol=1e-6)


def test_what_effects_are_part_of_is_not_derived() -> None:
    assert bound(not_centred).derived_names == ["log_tau"]  # not b


@pytest.mark.slow
def test_the_fit_is_that_of_the_model_by_hand() -> None:
    models = (MODEL, shardmc.from_numpyro(centred))
    options = {"draws": 2_000, "shards": 2, "check": False, "nodes": 9, "keep": None}
    own, found = (shardmc.fit(model, ROWS, **options) for model in models)
    np.testing.assert_allclose(found.mode, own.mode, atol=1e-3)  # type: ignore[arg-type]
    # The effects of a NumPyro model are its sites, with their means.
    gap = found.effects("g")["mean"] - own.effects("g")["mean"] - own.draws["mu"].mean()
    assert np.abs(gap).max() < 0.02


def with_effects(sample: Callable[..., Any], eta: Callable[..., Any] = lambda b, g, x: b[g]) -> Any:
    """A model whose plate samples as given, and whose rows use the effects as given."""

    def model(g, x, y):
        mu, tau = population()
        with numpyro.plate("groups", GROUPS):
            b = sample(mu, tau)
        observe(eta(b, g, x), y)

    return model


def normal(mu: Any, tau: Any) -> Any:
    return numpyro.sample("b", dist.Normal(0, tau))


def two(mu: Any, tau: Any) -> Any:
    first = numpyro.sample("first", dist.Normal(0, tau))
    return first + numpyro.sample("second", dist.Normal(first, 1.0))


def zero_sum(g, y):
    _, tau = population()
    b = numpyro.sample("b", dist.ZeroSumNormal(tau, (GROUPS,)))
    observe(b[g], y)


def crossed(g, h, y):
    _, tau = population()
    with numpyro.plate("a", GROUPS):
        a = numpyro.sample("a_effect", dist.Normal(0, tau))
    with numpyro.plate("b", 101):
        b = numpyro.sample("b_effect", dist.Normal(0, tau))
    observe(a[g] + b[h], y)


def summed(g, y):
    _, tau = population()
    with numpyro.plate("groups", GROUPS):
        b = numpyro.sample("b", dist.Normal(0, tau))
    numpyro.factor("sum to zero", -(jnp.sum(b) ** 2))
    observe(b[g], y)


def too_few(g, y):
    _, tau = population()
    with numpyro.plate("groups", 110):
        b = numpyro.sample("b", dist.Normal(0, tau))
    observe(b[g], y)


@pytest.mark.parametrize(
    ("function", "groups", "match"),
    [
        (with_effects(lambda m, t: numpyro.sample("b", dist.StudentT(3, 0, t))), None, "'b' .* is StudentT"),
        (with_effects(lambda m, t: numpyro.sample("b", dist.LogNormal(0, t))), None, "'b' .* is LogNormal"),
        (with_effects(lambda m, t: numpyro.sample("b", dist.Normal(Z, t))), None, "'b' differs between"),
        (with_effects(two), None, "'second' depends on other effects"),
        (with_effects(normal, lambda b, g, x: b[g] - b.mean()), None, "only at the row's own group"),
        (with_effects(normal, lambda b, g, x: b[g // 10]), None, "only at the row's own group"),
        (with_effects(normal, lambda b, g, x: b[g] + b[g - 1]), None, "only at the row's own group"),
        (with_effects(normal, lambda b, g, x: (b + Z)[g]), None, "'b' .* arrays of one entry per group"),
        (
            with_effects(normal, lambda b, g, x: jax.nn.one_hot(g, GROUPS) @ b),
            "g",
            "no plate has latent sites",
        ),
        (with_effects(normal, lambda b, g, x: b[g + (x > 0)]), None, "by the columns 'g' and 'x'"),
        (with_effects(normal), "x", "no plate has latent sites that rows look up by it"),
        (with_effects(normal), {"groups": "x"}, "by column 'g', not 'x'"),
        (with_effects(normal), {"clinics": "g"}, "Unknown plate with latent sites in groups 'clinics'"),
        (
            with_effects(lambda m, t: numpyro.sample("b", dist.Normal(0, t).expand([4]).to_event(1)).sum(-1)),
            None,
            "has 4 effects",
        ),
        (zero_sum, "g", "no plate has latent sites"),
        (crossed, None, "plates 'a' and 'b'"),
        (summed, None, "'sum to zero' depends on the effects"),
        (with_effects(normal), 5, "functools.partial"),
    ],
)
def test_what_cannot_be_integrated_out_is_refused(function: Any, groups: Any, match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        shardmc.fit(shardmc.from_numpyro(function, groups=groups), ROWS)
    assert "\n" not in str(caught.value)


def less_their_mean(g, income):
    _, tau = population()
    with numpyro.plate("groups", GROUPS):
        b = numpyro.sample("b", dist.Normal(0, tau))
    numpyro.sample("income", dist.Normal((b - b.mean())[g], 1.0), obs=income)


def observed_groups(g, income):
    _, tau = population()
    with numpyro.plate("groups", GROUPS):
        b = numpyro.sample("b", dist.Normal(0, tau))
        numpyro.sample("mean income", dist.Normal(b, 1.0), obs=1e6 + Z)
    numpyro.sample("income", dist.Normal(b[g], 1.0), obs=income)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (less_their_mean, "only at the row's own group"),
        (observed_groups, "'mean income' depends on the effects"),
    ],
)
def test_large_log_densities_hide_no_dependence(function: Any, match: str) -> None:
    rows = {"g": G, "income": 30_000 + X}
    with pytest.raises(ModelError, match=match):
        shardmc.from_numpyro(function).bind(rows)


@pytest.mark.slow
def test_more_groups_than_the_plate_has_are_refused() -> None:
    with pytest.raises(DataError, match="120 levels, but the plate of the model holds 110"):
        shardmc.fit(shardmc.from_numpyro(too_few), ROWS)


def test_rows_without_names_are_refused() -> None:
    model = shardmc.from_numpyro(centred, groups="g")
    with pytest.raises(ModelError, match="the rows need names"):
        shardmc.fit(model, (ROWS["g"], ROWS["y"]))


@pytest.mark.slow
def test_what_is_no_effect_of_a_group_stays_a_parameter() -> None:
    dims = {
        "all": bound(centred, groups=False).dim,
        "one of two": bound(crossed, groups={"a": "g"}).dim,
        "columns": bound(with_effects(normal, lambda b, g, x: b.sum() * x)).dim,
    }
    assert dims == {"all": 2 + GROUPS, "one of two": 2 + 101, "columns": 2 + GROUPS}
