"""Supports: bijections, Jacobians and free entries, against NumPyro and by quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer.util import potential_energy

from shardmc.errors import ModelError
from shardmc.model import Model, Parameter
from shardmc.model.precision import double_precision

COVARIANCE = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 0.5]])

# (what the user writes, a distribution on that support)
MULTIVARIATE = {
    "real": (Parameter(3), lambda: dist.Normal(0.5, 2.0).expand([3]).to_event(1)),
    "positive": (Parameter(2, "positive"), lambda: dist.Gamma(2.0, 3.0).expand([2]).to_event(1)),
    "unit_interval": (
        Parameter((2, 2), "unit_interval"),
        lambda: dist.Beta(2.0, 3.0).expand([2, 2]).to_event(2),
    ),
    "interval": (Parameter((), ("interval", -1.0, 3.0)), lambda: dist.Uniform(-1.0, 3.0)),
    "greater_than": (Parameter((), ("greater_than", 2.0)), lambda: dist.Pareto(2.0, 1.5)),
    "less_than": (Parameter((), ("less_than", 1.0)), lambda: dist.TruncatedNormal(0.0, 1.0, high=1.0)),
    "simplex": (Parameter(4, "simplex"), lambda: dist.Dirichlet(jnp.array([1.0, 2.0, 3.0, 0.7]))),
    "simplices": (
        Parameter((2, 3), "simplex"),
        lambda: dist.Dirichlet(jnp.ones(3) * 2).expand([2]).to_event(1),
    ),
    "ordered": (
        Parameter(3, "ordered"),
        lambda: dist.TransformedDistribution(
            dist.Normal(jnp.zeros(3), 1.0).to_event(1), dist.transforms.OrderedTransform()
        ),
    ),
    "positive_definite": (
        Parameter((3, 3), "positive_definite"),
        lambda: dist.Wishart(5.0, jnp.array(COVARIANCE)),
    ),
    "corr_cholesky": (Parameter((3, 3), "corr_cholesky"), lambda: dist.LKJCholesky(3, 2.0)),
    "correlation": (Parameter((3, 3), "correlation"), lambda: dist.LKJ(3, 2.0)),
    "lower_cholesky": (
        Parameter((2, 2), "lower_cholesky"),
        lambda: dist.ImproperUniform(constraints.lower_cholesky, (), (2, 2)),
    ),
    "constraint": (Parameter(3, constraints.zero_sum(1)), lambda: dist.ZeroSumNormal(1.0, (3,))),
}


def _model(parameter, distribution):
    return Model(
        lambda params, rows: rows * 0.0,
        lambda params: jnp.sum(distribution().log_prob(params["p"])),
        {"p": parameter},
    )


@pytest.fixture(params=MULTIVARIATE, scope="module")
def support(request):
    parameter, distribution = MULTIVARIATE[request.param]
    return _model(parameter, distribution), distribution


def test_log_prior_is_the_density_that_numpyro_samples(support):
    model, distribution = support

    def numpyro_model():
        numpyro.sample("p", distribution())

    def expected(theta):
        shaped = theta.reshape(model.parameters["p"].unconstrained_shape)
        return -potential_energy(numpyro_model, (), {}, {"p": shaped})

    with double_precision():
        both = jax.jit(lambda theta: (model.log_prior(theta), expected(theta)))
        for theta in np.random.default_rng(1).normal(size=(3, model.dim)):
            np.testing.assert_allclose(*both(jnp.asarray(theta)), rtol=1e-9)


def test_constrain_lands_in_the_support_and_unconstrain_returns(support):
    model, _ = support
    thetas = np.random.default_rng(2).normal(size=(5, model.dim))

    def there_and_back(theta):
        params = model.constrain(theta)
        return params["p"], model.parameters["p"].constraint(params["p"]), model.unconstrain(params)

    with double_precision():
        there_and_back = jax.jit(there_and_back)
        for theta in thetas:
            value, inside, back = there_and_back(jnp.asarray(theta))
            assert value.shape == model.parameters["p"].shape
            assert np.all(inside)
            np.testing.assert_allclose(back, theta, rtol=1e-6, atol=1e-8)
    one_by_one = np.stack([np.asarray(model.constrain_draws(theta[None])["p"][0]) for theta in thetas])
    np.testing.assert_allclose(model.constrain_draws(thetas)["p"], one_by_one, rtol=1e-12)


def test_natural_vector_has_a_name_per_column_and_an_inverse(support):
    model, _ = support
    theta = np.random.default_rng(3).normal(size=(50, model.dim))
    natural = model.natural_vector(theta)
    assert natural.shape == (50, model.natural_dim) == (50, model.dim)
    assert len(set(model.natural_names)) == model.natural_dim
    assert len(set(model.names)) == model.dim
    np.testing.assert_allclose(model.unconstrained_vector(natural), theta, rtol=1e-5, atol=1e-7)
    assert np.linalg.matrix_rank(np.cov(natural.T).reshape(model.dim, model.dim)) == model.dim


@pytest.mark.parametrize(
    ("parameter", "outside"),
    [
        (Parameter((), "positive"), [-0.1]),
        (Parameter((), "positive"), [0.0]),
        (Parameter(2, "unit_interval"), [0.5, 1.01]),
        (Parameter((), ("interval", -1, 3)), [3.5]),
        (Parameter(3, "simplex"), [0.7, 0.4]),
        (Parameter(3, "simplex"), [-0.1, 0.4]),
        (Parameter(3, "ordered"), [0.0, 2.0, 1.0]),
        (Parameter((2, 2), "positive_definite"), [1.5, 1.0, 1.0]),
        (Parameter((2, 2), "corr_cholesky"), [1.2]),
        (Parameter((3, 3), "correlation"), [0.9, 0.9, -0.9]),
        (Parameter((2, 2), "lower_cholesky"), [0.5, 1.0, -1.0]),
    ],
)
def test_a_draw_outside_the_support_becomes_a_row_of_nan(parameter, outside):
    model = Model(lambda params, rows: rows, None, {"a": (), "p": parameter, "b": 2})
    natural = model.natural_vector(np.zeros((3, model.dim)))
    natural[1, 1:-2] = outside
    theta = model.unconstrained_vector(natural)
    np.testing.assert_allclose(theta[[0, 2]], 0, atol=1e-12)
    assert np.isnan(theta[1]).all()


def _integral(log_density, dim, half_width, points):
    """Trapezoid rule on a grid of the unconstrained space, float64."""
    axis = np.linspace(-half_width, half_width, points)
    grid = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, dim)
    with double_precision():
        values = jax.jit(jax.vmap(log_density))(jnp.asarray(grid))
        return float(jnp.sum(jnp.exp(values)) * (axis[1] - axis[0]) ** dim)


INTEGRABLE = {
    "real": (Parameter(), lambda: dist.Normal(0.3, 1.5), 15, 401),
    "positive": (Parameter((), "positive"), lambda: dist.Gamma(2.0, 3.0), 20, 801),
    "unit_interval": (Parameter((), "unit_interval"), lambda: dist.Beta(2.0, 3.0), 20, 801),
    "interval": (Parameter((), ("interval", -1, 3)), lambda: dist.Uniform(-1.0, 3.0), 30, 801),
    "greater_than": (Parameter((), ("greater_than", 2.0)), lambda: dist.Pareto(2.0, 1.5), 30, 801),
    "simplex": (Parameter(2, "simplex"), lambda: dist.Dirichlet(jnp.array([2.0, 3.0])), 20, 801),
    "simplex of 3": (Parameter(3, "simplex"), lambda: dist.Dirichlet(jnp.array([2.0, 3.0, 1.5])), 20, 301),
    "corr_cholesky": (Parameter((2, 2), "corr_cholesky"), lambda: dist.LKJCholesky(2, 2.0), 15, 801),
    "correlation": (Parameter((2, 2), "correlation"), lambda: dist.LKJ(2, 2.0), 15, 801),
    "1x1": (Parameter((1, 1), "positive_definite"), lambda: dist.Wishart(3.0, jnp.eye(1)), 20, 801),
    "2x2": (
        Parameter((2, 2), "positive_definite"),
        lambda: dist.Wishart(4.0, jnp.eye(2), validate_args=False),
        9,
        91,
    ),
}


@pytest.mark.parametrize("name", INTEGRABLE)
def test_prior_with_jacobian_integrates_to_one(name):
    parameter, distribution, half_width, points = INTEGRABLE[name]
    model = _model(parameter, distribution)
    assert _integral(model.log_prior, model.dim, half_width, points) == pytest.approx(1, abs=2e-5)


def test_prior_of_ordered_numbers_integrates_to_one():
    # Two independent standard normals, sorted: density 2 phi(a) phi(b) on a < b.
    def log_prior(params):
        return jnp.log(2) + jnp.sum(dist.Normal(0, 1).log_prob(params["p"]))

    model = Model(lambda params, rows: rows * 0.0, log_prior, {"p": Parameter(2, "ordered")})
    assert _integral(model.log_prior, 2, 12, 401) == pytest.approx(1, abs=1e-5)


def test_without_jacobian_the_same_quadrature_rejects():
    model = _model(*INTEGRABLE["positive"][:2])
    wrong = _integral(lambda theta: model.log_prior_function(model.constrain(theta)), 1, 20, 801)
    assert abs(wrong - 1) > 0.1


def test_names_follow_the_shape():
    model = Model(
        lambda params, rows: rows * 0.0,
        None,
        {
            "a": (),
            "b": 2,
            "c": (2, 1),
            "w": Parameter(3, "simplex"),
            "s": Parameter((2, 2), "positive_definite"),
            "r": Parameter((3, 3), "corr_cholesky"),
        },
    )
    assert model.names[:5] == ["a", "b[0]", "b[1]", "c[0,0]", "c[1,0]"]
    assert model.names[5:10] == ["w[0]", "w[1]", "s[1,0]", "s[0,0]", "s[1,1]"]
    assert model.names[10:] == ["r[1,0]", "r[2,0]", "r[2,1]"]
    assert model.names == model.natural_names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("positiv", "Unknown support 'positiv'. Did you mean 'positive'"),
        ("simplex", "is for a vector"),
        (Parameter, "A shape must be a positive integer"),
        (0, "A shape must be a positive integer"),
        (True, "A shape must be a positive integer"),
        ((2, -1), "A shape must be a positive integer"),
        (("interval", 1.0), "takes 2 finite bounds"),
        (("interval", 0.0, float("inf")), "takes 2 finite bounds"),
        (("interval", 3.0, 1.0), "low < high"),
        (constraints.positive_integer, "is discrete"),
        (constraints.sphere, "is for a vector"),
    ],
)
def test_a_wrong_parameter_is_named(given, message):
    with pytest.raises(ModelError, match="Parameter 'p': .*" + message.replace("(", r"\(")):
        Model(lambda params, rows: rows, None, {"p": given})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Parameter((2, 3), "positive_definite"), "square"),
        (lambda: Parameter(3, constraints.sphere), "no bijection"),
    ],
)
def test_a_shape_that_does_not_fit_its_support_is_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()
