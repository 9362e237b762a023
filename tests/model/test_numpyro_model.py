"""NumPyro model functions: roles of sites, and the same densities as plain functions."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.util import potential_energy

from shardmc.errors import ModelError
from shardmc.model import Model, from_numpyro, validate
from shardmc.model.precision import double_precision

RNG = np.random.default_rng(0)
N = 12
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = RNG.normal(size=N).astype(np.float32)
B = (RNG.random(N) < 0.5).astype(np.float32)
G = np.arange(N) % 4
V = RNG.normal(size=(N, 2)).astype(np.float32)


def linear(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def linear_plate(x, y):
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(x.shape[1]), 2))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def linear_event(x, y):
    beta = numpyro.sample("beta", dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3) * 4))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    numpyro.factor("y", dist.Normal(x @ beta, sigma).log_prob(y))


PLAIN = Model(
    lambda p, rows: dist.Normal(rows[0] @ p["beta"], p["sigma"]).log_prob(rows[1]),
    lambda p: dist.Normal(0, 2).log_prob(p["beta"]).sum() + dist.Exponential(1.0).log_prob(p["sigma"]),
    {"beta": 3, "sigma": "positive"},
)


@pytest.mark.parametrize("function", [linear, linear_plate, linear_event])
def test_the_same_model_as_plain_functions_and_in_numpyro(function):
    model = from_numpyro(function).bind((X, Y))
    validate(model, (X, Y))
    assert model.names == PLAIN.names
    found, expected = (
        jax.jit(lambda theta, m=m: (m.log_likelihood(theta, (X, Y)), m.log_prior(theta)))
        for m in (model, PLAIN)
    )
    for theta in np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32):
        np.testing.assert_allclose(found(theta)[0], expected(theta)[0], rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(found(theta)[1], expected(theta)[1], rtol=2e-6)


def _hierarchy(y, group, num_groups):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    numpyro.deterministic("spread", effect.max() - effect.min())
    numpyro.deterministic("fitted", effect[group])
    numpyro.deterministic("mean fitted", effect[group].mean())
    numpyro.deterministic("effect of y", jnp.ones(3) * mu)
    numpyro.sample("y", dist.StudentT(4.0, effect[group], 1.0), obs=y)


def _categories(x, k):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 3]).to_event(2))
    cut = numpyro.sample("cut", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("k", dist.Categorical(logits=x @ w + jnp.log(cut)), obs=k)


def _mixture(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    means = numpyro.sample(
        "means",
        dist.TransformedDistribution(
            dist.Normal(jnp.zeros(2), 3.0).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    scales = numpyro.sample("scales", dist.LogNormal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        components = dist.Normal(means, scales)
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=weights), components), obs=y)


def _vectors(v):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1).expand([2]).to_event(1))
    corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
    tril = scale[:, None] * corr
    numpyro.deterministic("covariance", tril @ tril.T)
    with numpyro.plate("rows", v.shape[0]):
        numpyro.sample("v", dist.MultivariateNormal(mu, scale_tril=tril), obs=v)


def _several(x, y, b):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)
    with numpyro.plate("rows", x.shape[0]), handlers.scale(scale=0.5):
        numpyro.sample("b", dist.Bernoulli(logits=x @ beta), obs=b)


def _masked(x, y, b):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]))
    with handlers.mask(mask=b > 0):
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def _repeated(x, v):
    """Two measurements of each row, the rows on the last axis of the log density."""
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]))
    with numpyro.plate("rows", x.shape[0], dim=-1), numpyro.plate("times", 2, dim=-2):
        numpyro.sample("v", dist.Normal(x @ beta, 1.0), obs=v.T)


def _factors(x, y):
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), (3,)))
    numpyro.factor("ridge", -0.5 * jnp.sum(beta**2))
    numpyro.sample("known", dist.Normal(beta[0], 0.1), obs=0.3)
    numpyro.factor("rows", -jnp.abs(y - x @ beta))


def _bounded(y, low, high):
    p = numpyro.sample("p", dist.Uniform(jnp.array([low, low]), high))
    r = numpyro.sample("r", dist.Wishart(4.0, jnp.eye(2)))
    numpyro.sample("y", dist.Normal(p.sum(), jnp.sqrt(r[0, 0])), obs=y)


def _noncentred(y, group, num_groups):
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with handlers.reparam(config={"effect": numpyro.infer.reparam.LocScaleReparam(0)}):
        effect = numpyro.sample("effect", dist.Normal(0, tau).expand([num_groups]))
    numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


# (model function, rows, constants)
MODELS = {
    "linear": (linear, {"x": X, "y": Y}, {}),
    "hierarchy": (_hierarchy, {"y": Y, "group": G}, {"num_groups": 4}),
    "categories": (_categories, {"x": X, "k": G % 3}, {}),
    "mixture": (_mixture, {"y": Y}, {}),
    "vectors": (_vectors, {"v": V}, {}),
    "several": (_several, {"x": X, "y": Y, "b": B}, {}),
    "masked": (_masked, {"x": X, "y": Y, "b": B}, {}),
    "repeated": (_repeated, {"x": X, "v": V}, {}),
    "factors": (_factors, {"x": X, "y": Y}, {}),
    "bounded": (_bounded, {"y": Y}, {"low": -1.0, "high": 2.5}),
    "noncentred": (_noncentred, {"y": Y, "group": G}, {"num_groups": 4}),
}


NAMES = [name if k < 2 else pytest.param(name, marks=pytest.mark.slow) for k, name in enumerate(MODELS)]


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_prior_add_up_to_numpyros_log_density(name):
    function, rows, constants = MODELS[name]
    model = from_numpyro(function, **constants).bind(rows)
    validate(model, rows)
    with double_precision():
        rows64 = {
            k: jnp.asarray(v, float) if v.dtype == np.float32 else jnp.asarray(v) for k, v in rows.items()
        }

        @jax.jit
        def both(theta, rows):
            per_row = model.log_likelihood(theta, rows)
            assert per_row.shape == (N,)
            ends = np.cumsum([p.size for p in model.parameters.values()])[:-1]
            parts = zip(model.parameters.items(), jnp.split(theta, ends), strict=True)
            shaped = {site: part.reshape(p.unconstrained_shape) for (site, p), part in parts}
            expected = -potential_energy(function, (), rows | constants, shaped)
            return per_row.sum() + model.log_prior(theta), expected

        for theta in np.random.default_rng(2).normal(size=(2, model.dim)):
            ours, numpyros = both(theta, rows64)
            np.testing.assert_allclose(ours, numpyros, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_rows_contribute_one_by_one(name):
    function, rows, constants = MODELS[name]
    model = from_numpyro(function, **constants).bind(rows)
    theta = 0.3 * np.random.default_rng(3).normal(size=model.dim)
    together = jax.jit(model.log_likelihood)(theta, rows)
    alone = jax.jit(model.log_likelihood)(theta, {k: v[7:8] for k, v in rows.items()})
    np.testing.assert_allclose(together[7:8], alone, rtol=1e-5, atol=1e-6)


def test_deterministics_without_rows_are_derived_and_others_left_out():
    model = from_numpyro(_hierarchy, num_groups=4).bind({"y": Y, "group": G})
    theta = np.random.default_rng(4).normal(size=(5, model.dim))
    draws = model.constrain_draws(theta)
    assert list(draws) == ["mu", "tau", "effect", "spread", "effect of y"]
    np.testing.assert_allclose(draws["spread"], draws["effect"].max(1) - draws["effect"].min(1), rtol=1e-5)
    assert draws["effect of y"].shape == (5, 3)
    vectors = from_numpyro(_vectors).bind({"v": V})
    draws = vectors.constrain_draws(np.random.default_rng(5).normal(size=(5, vectors.dim)))
    assert draws["covariance"].shape == (5, 2, 2)
    np.testing.assert_allclose(draws["covariance"][:, 0, 0], draws["scale"][:, 0] ** 2, rtol=1e-6)


def test_hyperparameters_that_no_row_informs_directly_are_fine():
    model = from_numpyro(_hierarchy, num_groups=4).bind({"y": Y, "group": G})
    assert model.names[:2] == ["mu", "tau"]
    validate(model, {"y": Y, "group": G})


def test_the_same_structure_of_rows_gives_the_same_model():
    recipe = from_numpyro(linear)
    assert recipe.bind((X, Y)) is recipe.bind((X[:5] + 1, Y[:5]))
    assert recipe.bind((X, Y)) is not recipe.bind((X[:, :2], Y))
    assert recipe.bind({"x": X, "y": Y}) is recipe.bind({"x": X, "y": Y, "z": Y})


def test_fingerprint_depends_on_function_and_constants_not_on_the_sample():
    def print_of(rows, num_groups=4):
        return from_numpyro(_hierarchy, num_groups=num_groups).bind(rows).fingerprint(rows)

    first, again = print_of({"y": Y, "group": G}), print_of({"y": Y[::-1] + 1, "group": G[::-1]})
    assert first == again != print_of({"y": Y, "group": G}, num_groups=5)
    plain, plate = (from_numpyro(function).bind((X, Y)) for function in (linear, linear_plate))
    assert plain.fingerprint((X, Y)) != plate.fingerprint((X, Y))


class TestArguments:
    """Rows and constants as arguments of the function."""

    def test_dict_of_columns_fills_arguments_by_name(self):
        model = from_numpyro(linear).bind({"id": G, "y": Y, "x": X})
        theta = np.ones(4)
        np.testing.assert_allclose(
            jax.jit(model.log_likelihood)(theta, {"id": G, "y": Y, "x": X}),
            jax.jit(PLAIN.log_likelihood)(theta, (X, Y)),
            rtol=1e-5,
        )

    def test_columns_used_come_from_the_signature(self):
        table = {"id": G, "y": Y, "wide": X, "x": X}
        assert from_numpyro(linear).columns_used(table) == ["y", "x"]
        assert from_numpyro(linear).bind(table).columns_used(table) == ["y", "x"]
        assert from_numpyro(lambda **rows: linear(rows["x"], rows["y"])).columns_used(table) == list(table)

    def test_positional_constants_fill_what_the_rows_leave_open(self):
        def scaled(x, scale, y, power):
            beta = numpyro.sample("beta", dist.Normal(0, scale).expand([3]))
            numpyro.sample("y", dist.Normal(x @ beta, 2.0**power), obs=y)

        model = from_numpyro(scaled, 3.0, power=1).bind({"x": X, "y": Y})
        expected = dist.Normal(0, 3.0).log_prob(jnp.ones(3)).sum()
        np.testing.assert_allclose(model.log_prior(np.ones(3)), expected, rtol=1e-6)

        def tuple_first(x, y, scale):
            scaled(x, scale, y, 1)

        same = from_numpyro(tuple_first, 3.0).bind((X, Y))
        np.testing.assert_allclose(same.log_prior(np.ones(3)), expected, rtol=1e-6)
        np.testing.assert_allclose(
            jax.jit(same.log_likelihood)(np.ones(3), (X, Y)),
            jax.jit(model.log_likelihood)(np.ones(3), {"x": X, "y": Y}),
            rtol=1e-6,
        )

    def test_a_constant_given_by_name_wins_over_a_column_of_that_name(self):
        model = from_numpyro(_hierarchy, num_groups=4).bind({"y": Y, "group": G, "num_groups": Y})
        assert model.dim == 6

    def test_one_array_is_the_first_argument(self):
        model = from_numpyro(_mixture).bind(Y)
        assert jax.jit(model.log_likelihood)(model.initial, Y).shape == (N,)

    def test_a_table_as_one_dict(self):
        def of_table(table):
            linear(table["x"], table["y"])

        with pytest.raises(
            ModelError, match=r"reads column 'table', .* from_numpyro\(lambda \*\*rows: model\(rows\)\)"
        ):
            from_numpyro(of_table).bind({"x": X, "y": Y})
        assert from_numpyro(lambda **rows: of_table(rows)).bind({"x": X, "y": Y}).dim == 4

    def test_a_misspelt_column_is_named(self):
        with pytest.raises(ModelError, match=r"reads column 'y', which does not exist. There are: Y"):
            from_numpyro(linear).bind({"x": X, "Y": Y})


def test_threads_may_trace_one_model_at_the_same_time():
    rows = {"x": X, "y": Y, "b": B}
    model = from_numpyro(_several).bind(rows)

    def trace(_):
        return str(jax.make_jaxpr(lambda theta: model.log_likelihood(theta, rows))(np.zeros(3, np.float32)))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(trace, range(40)))) == 1
    finally:
        sys.setswitchinterval(before)


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


def test_many_thetas_share_one_matrix_product():
    def logistic(x, b):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]))
        numpyro.sample("b", dist.Bernoulli(logits=x @ beta), obs=b)

    model = from_numpyro(logistic).bind((X, B))
    program = jax.vmap(model.log_likelihood, in_axes=(0, None))
    jaxpr = jax.make_jaxpr(program)(jnp.zeros((50, 3)), (X, B))
    products = [e for e in _equations(jaxpr.jaxpr) if e.primitive.name == "dot_general"]
    assert len(products) == 1
    _, (left_batch, right_batch) = products[0].params["dimension_numbers"]
    assert left_batch == right_batch == ()
    assert {v.aval.shape for v in products[0].invars} == {(50, 3), (N, 3)}


def test_the_roles_of_sites_are_found_without_compiling(compilations):
    def plain(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
        numpyro.deterministic("twice", 2 * beta)
        numpyro.sample("y", dist.Normal(x @ beta, 1), obs=y)

    def computed(x, y):
        beta = numpyro.sample(
            "beta", dist.Uniform(-1, jnp.exp(jnp.log(2.0))).expand([x.shape[1]]).to_event(1)
        )
        numpyro.deterministic("fitted", x @ beta)
        numpyro.sample("y", dist.Normal(x @ beta, 1), obs=y)

    for function, derived, compiles in ((plain, True, False), (computed, False, True)):
        compilations.clear()
        model = from_numpyro(function).bind((X, Y))
        assert bool(compilations) == compiles
        assert (model.derived_function is not None) == derived


def test_bounds_are_those_of_the_precision_in_which_rows_are_read():
    def bounded(x, y):
        a = numpyro.sample("a", dist.Uniform(0.1, 0.7))
        numpyro.sample("y", dist.Normal(a * x[:, 0], 1), obs=y)

    support: Any = from_numpyro(bounded).bind((X, Y)).parameters["a"].support
    assert (support.lower_bound, support.upper_bound) == (float(np.float32(0.1)), float(np.float32(0.7)))
