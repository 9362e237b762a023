"""PyMC models: the same densities as PyMC's own, rows replaced by shards, and refusals by name."""

import builtins
import pickle
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from filelock import FileLock

from shardmc.errors import DataError, ModelError
from shardmc.model import from_pymc, validate
from shardmc.model.precision import double_precision

# ArviZ, which PyMC loads, notes in a file once a day that it has warned of its next version. All workers of pytest
# collect this module at the same time, and of two that write the note at once one fails.
with FileLock(Path(tempfile.gettempdir()) / "shardmc-tests-first-import-of-arviz.lock", mode=0o666):
    pm = pytest.importorskip("pymc")
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

RNG = np.random.default_rng(0)
N = 12
X = RNG.normal(size=(N, 3))
Y = RNG.normal(size=N)
B = (RNG.random(N) < 0.5).astype(int)
G = np.arange(N) % 4
V = RNG.normal(size=(N, 2))


def linear():
    with pm.Model() as model:
        x, y, scale = pm.Data("x", X), pm.Data("y", Y), pm.Data("scale", 2.0)
        beta = pm.Normal("beta", 0, scale, shape=x.shape[1])
        sigma = pm.Exponential("sigma", 1.0)
        pm.Normal("response", x @ beta, sigma, observed=y)
    return model


def hierarchy():
    with pm.Model(coords={"group": list("abcd")}) as model:
        y, index, width = pm.Data("y", Y), pm.Data("index", G), pm.Data("width", np.ones(4), dims="group")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        offset = pm.Normal("offset", 0, 1, dims="group")
        effect = pm.Deterministic("effect", mu + tau * offset * width, dims="group")
        pm.Deterministic("fitted", effect[index])
        pm.StudentT("response", nu=4, mu=effect[index], sigma=1, observed=y)
    return model


def categories():
    with pm.Model() as model:
        x, k = pm.Data("x", X), pm.Data("k", G % 3)
        w = pm.Normal("w", 0, 1, shape=(3, 3))
        p = pm.Dirichlet("p", np.ones(3))
        pm.Categorical("response", p=pm.math.softmax(x @ w + pt.log(p), axis=-1), observed=k)
    return model


def mixture():
    with pm.Model() as model:
        y = pm.Data("y", Y)
        weights = pm.Dirichlet("weights", np.ones(2))
        means = pm.Normal(
            "means", 0, 3, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1, 1]
        )
        scales = pm.LogNormal("scales", 0, 1, shape=2)
        pm.NormalMixture("response", weights, means, scales, observed=y)
    return model


def vectors():
    with pm.Model() as model:
        v = pm.Data("v", V)
        mu = pm.Normal("mu", 0, 1, shape=2)
        cholesky, _, _ = pm.LKJCholeskyCov("covariance", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0, size=2))
        pm.MvNormal("response", mu, chol=cholesky, observed=v)
    return model


def several():
    with pm.Model() as model:
        x, y, b = pm.Data("x", X), pm.Data("y", Y), pm.Data("b", B)
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Normal("continuous", x @ beta, 1, observed=y)
        pm.Bernoulli("binary", logit_p=x @ beta, observed=b)
        pm.Normal("known", beta[0], 0.1, observed=np.array([0.3, 0.4]))
    return model


def potentials():
    with pm.Model() as model:
        x, y, v = pm.Data("x", X), pm.Data("y", Y), pm.Data("v", V)
        beta = pm.Flat("beta", shape=3)
        pm.Potential("ridge", -0.5 * pt.sum(beta**2))
        pm.Potential("rows", -pt.abs(y - x @ beta))
        pm.Normal("repeated", (x @ beta)[:, None], 1, observed=v)
    return model


def bounded():
    with pm.Model() as model:
        y = pm.Data("y", Y)
        low = pm.Uniform("low", -1, 2.5, shape=2)
        share = pm.Beta("share", 2, 2)
        zero = pm.ZeroSumNormal("zero", 1, shape=4)
        pm.Normal("response", low.sum() + share + zero[0], 1, observed=y)
    return model


# name -> (model, names of its rows, names of its parameters' coordinates)
MODELS = {
    "linear": (linear, ["x", "y"], ["beta[0]", "beta[1]", "beta[2]", "sigma"]),
    "hierarchy": (
        hierarchy,
        ["y", "index"],
        ["mu", "tau", "offset[0]", "offset[1]", "offset[2]", "offset[3]"],
    ),
    "categories": (categories, ["x", "k"], None),
    "mixture": (
        mixture,
        ["y"],
        ["weights[0]", "means[0]", "means[1]", "scales[0]", "scales[1]"],
    ),
    "vectors": (vectors, ["v"], None),
    "several": (several, ["x", "y", "b"], ["beta[0]", "beta[1]", "beta[2]"]),
    "potentials": (potentials, ["x", "y", "v"], ["beta[0]", "beta[1]", "beta[2]"]),
    "bounded": (bounded, ["y"], ["low[0]", "low[1]", "share", "zero[0]", "zero[1]", "zero[2]"]),
}


class Built(dict):
    """Every model once, when it is needed: (PyMC's model, ours as a recipe)."""

    def __missing__(self, name):
        build, rows, _ = MODELS[name]
        model = build()
        self[name] = model, from_pymc(model, rows)
        return self[name]


@pytest.fixture(scope="module")
def built():
    return Built()


NAMES = [name if name == "linear" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_prior_add_up_to_pymcs_log_density(name, built):
    theirs, recipe = built[name]
    ours = recipe.bind(recipe.data)
    validate(ours, recipe.data)
    if MODELS[name][2] is not None:
        assert ours.names == MODELS[name][2]
    with pytensor.config.change_flags(cxx=""):
        log_density = theirs.compile_logp(mode="FAST_COMPILE")
    density = jax.jit(lambda theta, rows: (ours.log_likelihood(theta, rows), ours.log_prior(theta)))
    ends = np.cumsum([p.size for p in ours.parameters.values()])[:-1]
    for theta in np.random.default_rng(2).normal(size=(3, ours.dim)):
        parts = zip(ours.parameters.items(), np.split(theta, ends), strict=True)
        point = {
            theirs.rvs_to_values[theirs[rv]].name: part.reshape(p.unconstrained_shape)
            for (rv, p), part in parts
        }
        expected = log_density(point)
        with double_precision():
            per_row, prior = density(theta, recipe.data)
            assert per_row.shape == (N,)
            np.testing.assert_allclose(per_row.sum() + prior, expected, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_gives_the_same_to_rounding(name, built):
    """A zero sum that holds only to rounding was once outside the support."""
    _, recipe = built[name]
    model = recipe.bind(recipe.data)
    log_prior = jax.jit(model.log_prior)
    for theta in np.random.default_rng(4).normal(size=(8, model.dim)):
        with double_precision():
            exact = float(log_prior(theta))
        assert float(log_prior(theta.astype(np.float32))) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_rows_contribute_one_by_one(name, built):
    _, recipe = built[name]
    model = recipe.bind(recipe.data)
    theta = 0.3 * np.random.default_rng(3).normal(size=model.dim)
    together = jax.jit(model.log_likelihood)(theta, recipe.data)
    alone = jax.jit(model.log_likelihood)(theta, {k: v[7:8] for k, v in recipe.data.items()})
    np.testing.assert_allclose(together[7:8], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_natural_draws_and_back(name, built):
    _, recipe = built[name]
    model = recipe.bind(recipe.data)
    theta = np.random.default_rng(4).normal(size=(5, model.dim))
    np.testing.assert_allclose(model.unconstrained_vector(model.natural_vector(theta)), theta, atol=1e-6)


def test_a_draw_outside_the_support_has_no_unconstrained_value(built):
    model = built["bounded"][1].bind({"y": Y})
    natural = model.natural_vector(np.zeros((1, model.dim)))
    natural[0, 0] = 3.0
    assert np.isnan(model.unconstrained_vector(natural)).all()


def test_deterministics_without_rows_are_derived_and_others_left_out(built):
    model = built["hierarchy"][1].bind({"y": Y, "index": G})
    theta = np.random.default_rng(5).normal(size=(5, model.dim))
    draws = model.constrain_draws(theta)
    assert list(draws) == ["mu", "tau", "offset", "effect"]
    expected = draws["mu"][:, None] + draws["tau"][:, None] * draws["offset"]
    np.testing.assert_allclose(draws["effect"], expected, rtol=1e-5)


def test_models_travel(built):
    _, recipe = built["linear"]
    model = recipe.bind(recipe.data)
    copied = pickle.loads(pickle.dumps(model.log_likelihood_function.__self__))
    params = {name: values[0] for name, values in model.natural(np.zeros((1, model.dim))).items()}
    np.testing.assert_allclose(
        copied.log_likelihood(params, recipe.data), model.log_likelihood_function(params, recipe.data)
    )


class TestRows:
    """Rows in any structure that fit takes, and data that are no rows."""

    def test_columns_by_name_or_in_order(self, built):
        recipe = built["linear"][1]
        theta = np.ones(4)
        columns = {"id": G, "y": Y, "x": X}
        by_name = jax.jit(recipe.bind(columns).log_likelihood)(theta, columns)
        in_order = jax.jit(recipe.bind((X, Y)).log_likelihood)(theta, (X, Y))
        np.testing.assert_allclose(by_name, in_order)
        one = from_pymc(mixture(), "y").bind(Y)
        assert jax.jit(one.log_likelihood)(one.initial, Y).shape == (N,)
        assert recipe.columns_used(columns) == ["y", "x"]

    def test_the_same_structure_gives_the_same_model(self, built):
        recipe = built["linear"][1]
        assert recipe.bind((X, Y)) is recipe.bind((X[:5] + 1, Y[:5]))
        assert recipe.bind((X, Y)) is not recipe.bind({"x": X, "y": Y})

    def test_indices_that_came_as_floats(self, built):
        recipe = built["hierarchy"][1]
        rows = {"y": Y, "index": G.astype(np.float32)}
        model = recipe.bind(rows)
        np.testing.assert_allclose(
            jax.jit(model.log_likelihood)(model.initial, rows),
            jax.jit(recipe.bind(recipe.data).log_likelihood)(model.initial, recipe.data),
        )

    def test_data_that_are_no_rows_are_kept_at_their_value(self):
        model = linear()
        before = from_pymc(model, ["x", "y"])
        with model:
            pm.set_data({"scale": 3.0})
        after = from_pymc(model, ["x", "y"])
        theta = np.array([1.0, 2.0, 3.0, 0.0])
        gap = float(before.bind((X, Y)).log_prior(theta) - after.bind((X, Y)).log_prior(theta))
        assert gap == pytest.approx(-7 / 4 + 7 / 9 + 3 * np.log(3 / 2), rel=1e-4)
        again = from_pymc(linear(), ["x", "y"])
        first, second, third = (each.bind((X, Y)).fingerprint((X, Y)) for each in (before, after, again))
        assert first == third != second

    def test_misspelt_or_too_few(self, built):
        recipe = built["linear"][1]
        with pytest.raises(ModelError, match=r"reads column 'y', which does not exist. There are: Y, x"):
            recipe.bind({"x": X, "Y": Y})
        with pytest.raises(ModelError, match=r"reads 2 arrays of rows \(x, y\); 1 were given"):
            recipe.bind(X)


def _refused(build, rows, message, error=ModelError):
    with pm.Model() as model:
        build()

    def bound():
        recipe = from_pymc(model, rows)
        return recipe.bind(recipe.data)

    with pytest.raises(error, match=message) as raised:
        bound()
    assert "\n" not in str(raised.value)


class TestRefusals:
    """Each names the variable and says what to do."""

    def test_what_rows_must_be(self):
        def simple():
            pm.Data("k", 3.0)
            pm.Data("short", Y[:5])
            pm.Normal("y", pm.Normal("mu"), 1, observed=pm.Data("column", Y))

        _refused(simple, ["colum"], "Unknown pm.Data in rows= of from_pymc 'colum'. Did you mean 'column'")
        _refused(simple, [], "rows= of from_pymc must name the pm.Data .* There are: 'k', 'short', 'column'")
        _refused(simple, ["column", "k"], "pm.Data 'k' is a single number, .*: leave it out of rows=")
        _refused(
            simple,
            ["column", "short"],
            r"differ in their number of rows: 'column' \(12\), 'short' \(5\)",
            DataError,
        )
        _refused(simple, ["short"], "No observed variable of the PyMC model depends on 'short'")
        with pytest.raises(ModelError, match=r"from_pymc takes a pymc\.Model; function was given"):
            from_pymc(simple, ["column"])

    def test_observations_that_are_no_rows(self):
        def array():
            pm.Normal("obs", pm.Normal("b") * pm.Data("x", Y), 1, observed=Y)

        def data():
            pm.Normal("obs", pm.Normal("b") * pm.Data("x", Y), 1, observed=pm.Data("y", Y))

        _refused(
            array,
            ["x"],
            "Observed variable 'obs' .* its observations are an array of its own: make",
        )
        _refused(data, ["x"], "Observed variable 'obs' .* its observations are pm.Data 'y'")

    def test_observations_that_two_variables_share(self):
        def shared():
            y, mu = pm.Data("column", Y), pm.Normal("mu")
            pm.Normal("first", mu, 1, observed=y)
            pm.Normal("second", 2 * mu, 1, observed=y)

        _refused(shared, ["column"], "Observed variables 'first' and 'second' share their observations")

    def test_one_value_per_row(self):
        def effects():
            u = pm.Normal("u", 0, 1, shape=N)
            pm.Normal("y", u, 1, observed=pm.Data("column", Y))

        _refused(effects, ["column"], r"Variable 'u' has one value per row \(shape \(12,\) for 12 rows\)")

    def test_a_discrete_variable(self):
        def switch():
            pm.Normal("y", pm.Bernoulli("z", 0.5), 1, observed=pm.Data("column", Y))

        _refused(switch, ["column"], "Variable 'z' is discrete. Marginalise it .*pm.Mixture")

    def test_a_potential_of_all_rows_together(self):
        def summed():
            y, mu = pm.Data("column", Y), pm.Normal("mu")
            pm.Normal("y", mu, 1, observed=y)
            pm.Potential("total", -pt.sum((y - mu) ** 2))

        _refused(summed, ["column"], "potential 'total' is one number for all rows: .* without the sum")

    def test_a_prior_or_support_that_depends(self):
        def empirical():
            y = pm.Data("column", Y)
            pm.Normal("y", pm.Normal("mu", y.mean(), 1), 1, observed=y)

        def support():
            top = pm.HalfNormal("top")
            pm.Normal("y", pm.Uniform("u", 0, top), 1, observed=pm.Data("column", Y))

        _refused(empirical, ["column"], "The prior of variable 'mu' depends on the rows")
        _refused(support, ["column"], "The support of variable 'u' depends on another variable")

    def test_minibatches_and_missing_values(self):
        def minibatch():
            pm.Normal("y", pm.Normal("mu"), 1, observed=pm.Data("column", Y), total_size=10 * N)

        def holes():
            x = pm.Data("x", X)
            masked = np.ma.masked_array(Y, mask=B)
            pm.Normal("y", x @ pm.Normal("beta", shape=3), 1, observed=masked)

        _refused(minibatch, ["column"], "Observed variable 'y' has total_size=")
        _refused(holes, ["x"], "Variable 'y_unobserved' stands for missing observations")

    def test_nothing_to_infer(self):
        def nothing():
            pm.Normal("y", 0, 1, observed=pm.Data("column", Y))

        _refused(nothing, ["column"], "has no free variable")

    def test_without_pymc(self, monkeypatch):
        found = builtins.__import__

        def without(name, *args, **kwargs):
            if name.partition(".")[0] == "pymc":
                raise ImportError(name)
            return found(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ModelError, match=r"from_pymc needs PyMC: pip install 'shardmc\[pymc\]'"):
            from_pymc(None, ["x"])
