"""Model: the vector theta, draws in float64, derived quantities, identity, fingerprint."""

import pickle
import subprocess
import sys

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from shardmc.errors import ModelError
from shardmc.model import Model, Parameter
from shardmc.model.coordinates import BLOCK
from shardmc.model.fingerprint import fingerprint


def _log_likelihood(params, rows):
    x, y = rows
    return dist.Normal(x @ params["beta"], params["sigma"]).log_prob(y)


def _log_prior(params):
    return dist.Normal(0, 2).log_prob(params["beta"]).sum() + dist.Exponential(1).log_prob(params["sigma"])


def _model(**options):
    return Model(_log_likelihood, _log_prior, {"beta": 2, "sigma": "positive"}, **options)


def test_log_density_at_a_point_is_what_the_formula_says():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 2)), rng.normal(size=6)
    beta, sigma = np.array([0.3, -0.7]), 1.7
    theta = np.array([*beta, np.log(sigma)])
    model = _model()
    expected = -0.5 * ((y - x @ beta) / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(model.log_likelihood(theta, (x, y)), expected, rtol=1e-5)
    prior = -0.5 * (beta**2).sum() / 4 - 2 * np.log(2 * np.sqrt(2 * np.pi)) - sigma + np.log(sigma)
    np.testing.assert_allclose(model.log_prior(theta), prior, rtol=1e-5)


def test_flat_prior_is_flat_on_the_natural_scale():
    model = Model(_log_likelihood, None, {"beta": 2, "sigma": "positive"})
    assert float(model.log_prior(np.array([5.0, -3.0, 0.7]))) == pytest.approx(0.7)


def test_real_parameters_of_draws_are_copied_bit_by_bit_and_others_are_double():
    theta = np.random.default_rng(1).normal(size=(7, 3)) * (1 + 1e-12)
    before = jax.config.jax_enable_x64, jnp.zeros(1).dtype
    draws = _model().constrain_draws(theta)
    np.testing.assert_array_equal(draws["beta"], theta[:, :2])
    np.testing.assert_allclose(draws["sigma"], np.exp(theta[:, 2]), rtol=1e-14)
    assert {v.dtype for v in draws.values()} == {np.dtype(np.float64)}
    assert (jax.config.jax_enable_x64, jnp.zeros(1).dtype) == before


def test_many_draws_are_transformed_block_by_block():
    theta = np.linspace(-1, 1, 3 * (BLOCK + 5)).reshape(-1, 3)
    model = _model(derived=lambda params: {"ratio": params["beta"] / params["sigma"]})
    draws = model.constrain_draws(theta)
    np.testing.assert_allclose(draws["sigma"], np.exp(theta[:, 2]), rtol=1e-14)
    np.testing.assert_allclose(draws["ratio"], theta[:, :2] / np.exp(theta[:, 2:]), rtol=1e-6, atol=1e-8)
    assert list(draws) == ["beta", "sigma", "ratio"]
    assert model.constrain_draws(np.empty((0, 3)))["sigma"].shape == (0,)


def test_numpy_constants_of_64_bits_survive_changes_of_precision():
    center, order = np.array([0.1, 0.2]), np.array([1, 0])
    model = Model(
        lambda params, rows: rows * (params["p"] * center).sum() + center[order].sum(),
        lambda params: -(((params["p"] - center) ** 2)[order]).sum(),
        {"p": Parameter(2, ("interval", np.array([-1.0, 0.0]), np.array([1.0, 3.0])))},
        derived=lambda params: {"shifted": (params["p"] - center)[order]},
    )
    theta = np.random.default_rng(3).normal(size=(5, 2))
    for _ in range(2):
        draws = model.constrain_draws(theta)
        np.testing.assert_allclose(draws["shifted"], (draws["p"] - center)[:, ::-1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(model.unconstrained_vector(model.natural_vector(theta)), theta, rtol=1e-10)
        prior = jax.jit(lambda theta: model.log_prior(theta) + 1)(theta[0])
        assert np.isfinite(prior)
        assert np.isfinite(jax.jit(lambda theta: model.log_likelihood(theta, jnp.ones(2)))(theta[0])).all()


def test_natural_vector_and_back():
    theta = np.random.default_rng(2).normal(size=(4, 3))
    natural = _model().natural_vector(theta)
    np.testing.assert_allclose(natural[:, 2], np.exp(theta[:, 2]))
    np.testing.assert_allclose(_model().unconstrained_vector(natural), theta, rtol=1e-12)


def test_initial_values_are_given_on_the_natural_scale():
    model = _model(initial={"sigma": 3.0})
    np.testing.assert_allclose(model.initial, [0, 0, np.log(3)])
    np.testing.assert_array_equal(_model().initial, np.zeros(3))
    with pytest.raises(ModelError, match=r"initial\['sigma'\] is not inside the support"):
        _model(initial={"sigma": -1.0})
    with pytest.raises(ModelError, match=r"Unknown parameter 'sgima'. Did you mean 'sigma'"):
        _model(initial={"sgima": 1.0})
    with pytest.raises(ModelError, match=r"'beta' has shape \(2,\); \(3,\) was given"):
        _model(initial={"beta": np.zeros(3)})


def test_unconstrain_wants_every_parameter():
    with pytest.raises(ModelError, match="Values of sigma are missing"):
        _model().unconstrain({"beta": np.zeros(2)})


def test_draws_of_the_wrong_shape_are_refused():
    for theta in (np.zeros(3), np.zeros((4, 2))):
        with pytest.raises(ModelError, match=r"Draws must have shape \(draw, 3\)"):
            _model().constrain_draws(theta)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, {"a": 1}), "log_likelihood must be a function; NoneType"),
        ((_log_likelihood, {"a": 1}, {"a": 1}), "log_prior must be a function; dict"),
        ((_log_likelihood, None, {}), "no parameters"),
        ((_log_likelihood, None, ["a"]), "parameters must be a dict"),
        ((_log_likelihood, None, {3: 1}), "names must be text"),
        ((_log_likelihood, None, {"p": Parameter(1, "simplex")}), "no free parameter"),
    ],
)
def test_a_model_that_is_none_is_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        Model(*arguments)


def test_identity_is_kept_through_pickling():
    model = _model(initial={"sigma": 2.0})
    assert pickle.loads(pickle.dumps(model)) is model
    assert model != _model()
    assert len({model, model, _model()}) == 2


@pytest.mark.slow
def test_a_model_unpickled_elsewhere_is_one_object_and_the_same_model():
    model = _model(initial={"sigma": 2.0}, derived=lambda params: {"variance": params["sigma"] ** 2})
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        blob = cloudpickle.dumps(model)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    script = (
        "import pickle, sys; blob = sys.stdin.buffer.read(); a = pickle.loads(blob); b = pickle.loads(blob); "
        "import numpy as np; print(a is b, a.fingerprint((np.zeros((3, 2)), np.zeros(3))), a.initial.tolist())"
    )
    result = subprocess.run([sys.executable, "-c", script], input=blob, capture_output=True, check=True)
    same, printed, initial = result.stdout.decode().split(maxsplit=2)
    assert same == "True"
    assert printed == model.fingerprint((np.zeros((3, 2)), np.zeros(3)))
    assert initial.strip() == str(model.initial.tolist())


def test_columns_used_are_those_the_likelihood_reads():
    def log_likelihood(params, rows):
        n = rows["id"].shape[0]
        return -((rows["y"] - params["mu"]) ** 2) + jnp.zeros(n)

    table = {"id": np.arange(4), "wide": np.zeros(4), "y": np.zeros(4)}
    assert Model(log_likelihood, None, {"mu": ()}).columns_used(table) == ["id", "y"]
    jitted = Model(jax.jit(log_likelihood), None, {"mu": ()})
    assert jitted.columns_used(table) == ["id", "wide", "y"]
    broken = Model(lambda params, rows: rows["z"], None, {"mu": ()})
    assert broken.columns_used(table) == ["id", "wide", "y"]
    unpacked = Model(lambda params, rows: (lambda y, **_: y)(**rows), None, {"mu": ()})
    assert unpacked.columns_used(table) == ["id", "wide", "y"]


def _factory(scale, offset):
    return lambda params, rows: params["a"] * scale + offset.sum() + rows


HELPER_SCALE = 2.0


def _helper(x):
    return x * HELPER_SCALE


def test_fingerprint_sees_constants_closures_arrays_and_helpers():
    def model(function, **parameters):
        return Model(function, None, parameters or {"a": ()}).fingerprint(np.zeros(2))

    base = model(_factory(1.0, np.zeros(2)))
    assert base == model(_factory(1.0, np.zeros(2)))
    assert base == model(_factory(1.0, np.zeros(2)), a=())
    assert base == model(_factory(1.0, np.zeros(3))), "their sum is the same"
    changed = {
        model(_factory(2.0, np.zeros(2))),
        model(_factory(1.0, np.ones(2))),
        model(_factory(1.0, np.zeros(2)), a="positive"),
        model(_factory(1.0, np.zeros(2)), a=1),
        model(lambda params, rows: _helper(rows)),
        Model(_factory(1.0, np.zeros(2)), lambda params: -(params["a"] ** 2), {"a": ()}).fingerprint(
            np.zeros(2)
        ),
    }
    assert len(changed) == 6
    assert base not in changed


def test_fingerprint_follows_globals(monkeypatch):
    def function(x):
        return _helper(x)

    before = fingerprint(function)
    monkeypatch.setitem(globals(), "HELPER_SCALE", 3.0)
    assert fingerprint(function) != before


@pytest.mark.slow
def test_fingerprint_is_the_same_in_another_process():
    source = (
        "import jax, jax.numpy as jnp, numpy as np, functools\n"
        "from shardmc.model.fingerprint import fingerprint\n"
        "def f(params, rows, *, names=frozenset({'a', 'b', 'c', 'd'})):\n"
        "    return jax.nn.log_sigmoid(rows['x']) if 'a' in {'a', 'b', 'zz'} else jnp.sum(rows['x'])\n"
        "class Link:\n"
        "    def __init__(self): self.scale = 2.0\n"
        "    def __call__(self, x): return x * self.scale\n"
        "print(fingerprint(f, functools.partial(f, 1), jax.jit(f), Link(), Link().__call__, {'k': np.arange(3)}))\n"
    )
    seeds = ("1", "2")
    runs = [
        subprocess.run(
            [sys.executable, "-c", source], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in seeds
    ]
    assert runs[0] == runs[1]
    assert len(runs[0].strip()) == 32


def test_importing_the_models_leaves_numpyro_alone():
    script = "import sys, shardmc.model; print('numpyro' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout.strip()
        == b"False"
    )
